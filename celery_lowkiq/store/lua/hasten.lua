-- Makes waiting jobs due now.
--
-- KEYS: due
-- ARGV: channel index limit
-- USES: time wake
-- Returns: how many were due later.
-- Cost: O(limit log n). Repeated: those that are due stay as they are.
local before = head()
local now = seconds(now_us())
local ids = redis.call('ZRANGEBYSCORE', due, '(' .. now, '+inf', 'LIMIT', 0, limit)
for _, id in ipairs(ids) do
  redis.call('ZADD', due, now, id)
end
wake(before)
return #ids
