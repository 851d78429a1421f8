-- Takes over a shard if its lease is unchanged since the caller read it, and returns the jobs that its former
-- owner left in processing to the queue before any claim (rule 8).
--
-- ROLE: worker
-- KEYS: lease meta @waiting jobs spill spill_order failed errors claimed processing crash_marks @morgue arrived? inflight?
-- POLICY KEYS: debounce? early_due?
-- ARGV: owner seen_owner seen_epoch seen_counter seen_server known_epoch shards merge policy max_crashes poison_error
--   seen_server: the server that the lease was read from; another one may have lost later writes
--   known_epoch: the largest known to the caller, so that a Redis restored from an old copy does not repeat an epoch
-- USES: meta.format time lease.server processing.checks processing.recover crashes.count policies.hold
-- FLAGS: allow-oom
-- Returns: {epoch as text, server} (the same when repeated); error NOTOWNER <epoch>, SHARDS <stored count>, or DAMAGED <key>
--   when keys of the shard were lost (store/repairs.py).
-- Cost: O(log n) a payload in processing; INFO takes about 20 us.
local stored = redis.call('HMGET', meta, 'shards', 'format', 'spill_difference')
if stored[1] and is_foreign(stored[2]) then
  return refuse_format(stored[2])
elseif stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end
local current = redis.call('HMGET', lease, 'owner', 'epoch', 'counter', 'stopping', 'server')
-- Foreign data counts as missing: the next owner rewrites the lease.
local function whole(text)
  return text and #text < 16 and string.match(text, '^[1-9]%d*$') or '0'
end
local former, epoch, counter = current[1] or '', whole(current[2]), whole(current[3])
local server = server_name()
local given_here = current[5] == server
if former == owner and given_here then
  -- The reply was lost. Other nodes have observed this counter since then, and would take the shard too early.
  redis.call('HINCRBY', lease, 'counter', 1)
  redis.call('HDEL', lease, 'turn')
  return {epoch, server}
end
if seen_server ~= server or former ~= seen_owner or epoch ~= seen_epoch or counter ~= seen_counter then
  return redis.error_reply('NOTOWNER ' .. epoch)
end

local now = now_us()
local now_s = seconds(now)
-- The lease was lost, and the owner of the last claim may still work: give it the time of a lease to come back.
local last_claim = not current[1] and string.match(redis.call('HGET', meta, 'request') or '', '^([1-9]%d*) ')
if last_claim then
  redis.call('HSET', lease, 'owner', '', 'epoch', last_claim, 'counter', '1', 'server', 'lost', 'since', now_s)
  return redis.error_reply('NOTOWNER ' .. last_claim)
end
local damaged = inconsistent_key(stored[3]) or inconsistent_index()
if damaged then
  return redis.error_reply('DAMAGED ' .. damaged)
end
local next_epoch = math.max(tonumber(epoch) + 1, tonumber(known_epoch) + 1, math.floor(now / 1000))
epoch = string.format('%.0f', next_epoch)
-- If Redis restarted too, do not count this as a job-caused crash.
local crashed = former ~= '' and former ~= owner and current[4] ~= '1' and given_here

-- Recovered jobs are due in the order of their claims. Times of jobs with a priority are less exact, so steps are larger.
local at = now

local function take_over(id)
  local job = take_processing(id)
  if crashed and #job.items > 0 then
    suspect(id, job.items, now, current[2], max_crashes, poison_error)
  end
  recover(id, job, seconds(at))
  at = at + (job.priority > 0 and 32 or 1)
end

for _, id in ipairs(redis.call('ZRANGE', claimed, 0, -1)) do
  take_over(id)
end
redis.call('HSET', lease, 'owner', owner, 'epoch', epoch, 'counter', string.format('%.0f', counter + 1), 'stopping', '0',
  'leaving', '0', 'server', server, 'since', now_s)
count_payloads(waiting)
return {epoch, server}
