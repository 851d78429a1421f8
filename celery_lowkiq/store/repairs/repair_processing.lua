-- Makes what tells of claims, and what was claimed, agree.
--
-- KEYS: lease claimed processing jobs tries deaths
-- ARGV: owner epoch
--   owner, epoch: of the lease as the caller knows it; payloads are given up only while it is still so
-- USES: bag_read processing
-- FLAGS: allow-oom
-- Returns: {jobs whose claim is known again, jobs whose payloads are lost}.
-- Cost: O(log n) a job in processing: never more than an owner has claimed.
local current = redis.call('HMGET', lease, 'owner', 'epoch')
local as_known = (current[1] or '') == owner and (current[2] or '0') == epoch
local mended, lost = 0, 0
local records = redis.call('HGETALL', processing)
for i = 1, #records, 2 do
  if not redis.call('ZSCORE', claimed, records[i]) then
    redis.call('ZADD', claimed, read_held(records[i + 1]).claim, records[i])
    mended = mended + 1
  end
end
for _, id in ipairs(as_known and redis.call('ZRANGE', claimed, 0, -1) or {}) do
  if redis.call('HEXISTS', processing, id) == 0 then
    redis.call('ZREM', claimed, id)
    if redis.call('HEXISTS', jobs, id) == 0 then
      redis.call('HDEL', deaths, id)
      redis.call('HDEL', tries, id)
    end
    lost = lost + 1
  end
end
return {mended, lost}
