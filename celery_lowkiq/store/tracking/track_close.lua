-- Says that no more calls will be added, or that those which wait shall not run.
--
-- KEYS: tracker tracked places messages
-- ARGV: channel cancel limit
--   cancel: '1' cancels, too; limit: so many waiting calls end in this step
-- USES: time track
-- FLAGS: allow-oom
-- Returns: how many calls have ended; less than the limit: none is left. -1 for a tracker that has expired.
-- Cost: O(limit log n).
if not redis.call('HGET', tracker, 'closed') then
  return -1
end
may_write()
redis.call('HSET', tracker, 'closed', '1')
local waiting = {}
if cancel == '1' then
  redis.call('HSET', tracker, 'cancelled', '1')
  waiting = redis.call('ZRANGEBYSCORE', places, '-inf', '(' .. SPAN, 'LIMIT', 0, limit)
end
for _, call in ipairs(waiting) do
  local _, arrival = where(call)
  place(call, arrival, 'failed', 'enqueued')
  say(call, 'failed', 'cancelled')
end
changed.enqueued = changed.enqueued or 0
conclude()
return #waiting
