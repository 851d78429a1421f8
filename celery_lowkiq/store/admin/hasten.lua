-- Makes waiting jobs due now. Those that are held stay so, and are due at once when their ids are resumed.
--
-- KEYS: due ranked? classes? paused? held
-- ARGV: channel index limit
-- USES: time ranks wake
-- Returns: how many were due later.
-- Cost: O(limit log n). Repeated: those that are due stay as they are.
local before = first_due()
local now = seconds(now_us())
local hastened = 0
for _, index in ipairs({due, held, any_ranked and ranked or nil}) do
  local ids = redis.call('ZRANGEBYSCORE', index, '(' .. now, '+inf', 'LIMIT', 0, limit - hastened)
  for _, id in ipairs(ids) do
    redis.call('ZADD', index, now, id)
    if index == ranked then
      redis.call('ZADD', classes, class_score(rank_of(id), now), id)
    end
  end
  hastened = hastened + #ids
end
wake(before)
return hastened
