-- Makes waiting jobs due now, all or some. A job of a paused id runs when the id is resumed.
--
-- ROLE: operator
-- KEYS: @waiting!
-- ARGV: channel index limit [id]...
--   limit: how many jobs of the shard to make due; 0 for the given ids only
-- USES: time waiting.index waiting.wake
-- Returns: the number of jobs that were due later.
-- Cost: O(log n) per job. Repeated: no effect on due jobs.
local before, now, moved = first_due(), seconds(now_us()), 0

local function make_due(id, perform_in)
  if perform_in and tonumber(perform_in) > tonumber(now) then
    index_put(id, now, priority_of(id))
    moved = moved + 1
  end
end

local indexes = {due, due_paused, any_prioritized and due_prioritized or nil}
indexes[#indexes + 1] = any_moving and moving or nil
for _, key in ipairs(indexes) do
  local later = redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, limit - moved)
  for i = 1, #later, 2 do
    make_due(later[i], later[i + 1])
  end
end
for i = rest, #ARGV do
  make_due(ARGV[i], index_score(ARGV[i]))
end
wake(before)
return moved
