-- Closes a tracker, so that no more calls are added, or cancels its waiting calls.
--
-- ROLE: caller
-- KEYS: tracker tracked places messages
-- ARGV: channel cancel limit
--   cancel: '1' also cancels; limit: maximum number of waiting calls to end in this step
-- USES: time track
-- FLAGS: allow-oom
-- Returns: the number of calls ended; no call remains when it is below the limit. -1 for a tracker that has expired.
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
  add_message(call, 'failed', 'cancelled')
end
changed.enqueued = changed.enqueued or 0
finish_update()
return #waiting
