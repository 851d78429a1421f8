-- Makes waiting jobs due now. Those of paused ids stay paused, and are due at once when their ids are resumed.
--
-- KEYS: @waiting!
-- ARGV: channel index limit
-- USES: time wake
-- Returns: how many were due later.
-- Cost: O(limit log n). Repeated: those that are due stay as they are.
local before = first_due()
local now = seconds(now_us())
local moved = 0
for _, index in ipairs({due, due_paused, any_prioritized and due_prioritized or nil}) do
  local ids = redis.call('ZRANGEBYSCORE', index, '(' .. now, '+inf', 'LIMIT', 0, limit - moved)
  for _, id in ipairs(ids) do
    index_put(id, now, priority_of(id))
  end
  moved = moved + #ids
end
wake(before)
return moved
