-- Needs KEYS due, ranked, classes, ARGV max_wait, and time, ranks. Due jobs in the order of their turns, see
-- rules/priorities.py.
local turns
if any_ranked then
  local LEAST_URGENT = 9

  -- Jobs that are due for longer than max_wait, whatever their priority, then the more urgent ones: id, perform_in, ...
  function turns(now, count)
    local now_s = now / 1000000
    local long_ago = math.max(0, math.floor(now - max_wait * 1000000)) / 1000000
    local found = {}

    local function add(rank, from, to)
      local index = rank == 0 and due or classes
      local ids = redis.call('ZRANGEBYSCORE', index, from, to, 'WITHSCORES', 'LIMIT', 0, count)
      for i = 1, #ids, 2 do
        local since = tonumber(ids[i + 1]) - rank * CLASS
        found[#found + 1] = {id = ids[i], since = since, place = #found, perform_in = rank == 0 and ids[i + 1]}
      end
    end

    for rank = 0, LEAST_URGENT do
      add(rank, rank == 0 and '-inf' or class_score(rank, 0), '(' .. class_score(rank, long_ago))
    end
    table.sort(found, function(one, other)
      return one.since < other.since or one.since == other.since and one.place < other.place
    end)
    for rank = 0, LEAST_URGENT do
      if #found < count then
        add(rank, class_score(rank, long_ago), class_score(rank, now_s))
      end
    end
    local taken = {}
    for i = 1, math.min(count, #found) do
      local perform_in = found[i].perform_in or redis.call('ZSCORE', ranked, found[i].id)
      -- A class knows times less exactly: one of its jobs may be due only in some us.
      if perform_in and tonumber(perform_in) <= now_s then
        taken[#taken + 1], taken[#taken + 2] = found[i].id, perform_in
      end
    end
    return taken
  end
end
