-- Makes the index of claims consistent with the jobs in processing.
--
-- ROLE: operator
-- KEYS: lease claimed processing jobs tries crash_marks
-- ARGV: owner epoch
--   owner, epoch: of the lease as the caller read it; lost payloads are dropped only while it is unchanged
-- USES: payloads processing
-- FLAGS: allow-oom
-- Returns: {jobs whose claim was restored, jobs whose payloads are lost}.
-- Cost: O(log n) per job in processing: at most the jobs that an owner has claimed.
local current = redis.call('HMGET', lease, 'owner', 'epoch')
local as_known = (current[1] or '') == owner and (current[2] or '') == epoch
local mended, lost = 0, 0
local records = redis.call('HGETALL', processing)
for i = 1, #records, 2 do
  if not redis.call('ZSCORE', claimed, records[i]) then
    redis.call('ZADD', claimed, read_processing(records[i + 1]).claim, records[i])
    mended = mended + 1
  end
end
for _, id in ipairs(as_known and redis.call('ZRANGE', claimed, 0, -1) or {}) do
  if redis.call('HEXISTS', processing, id) == 0 then
    redis.call('ZREM', claimed, id)
    if redis.call('HEXISTS', jobs, id) == 0 then
      redis.call('HDEL', crash_marks, id)
      redis.call('HDEL', tries, id)
    end
    lost = lost + 1
  end
end
return {mended, lost}
