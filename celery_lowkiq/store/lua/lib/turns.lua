-- Needs KEYS due, ranked, classes, ARGV max_wait, and time, ranks. Due jobs in the order of their turns, see
-- rules/priorities.py.
local LEAST_URGENT = 9

-- Jobs that are due for longer than max_wait, whatever their priority, then the more urgent ones: id, perform_in, ...
local function turns(now, count)
  if not any_ranked then
    return redis.call('ZRANGEBYSCORE', due, '-inf', seconds(now), 'WITHSCORES', 'LIMIT', 0, count)
  end
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
      add(rank, class_score(rank, long_ago), class_score(rank, now / 1000000))
    end
  end
  local taken = {}
  for i = 1, math.min(count, #found) do
    local job = found[i]
    taken[2 * i - 1], taken[2 * i] = job.id, job.perform_in or redis.call('ZSCORE', ranked, job.id) or seconds(now)
  end
  return taken
end
