-- Where a waiting job lies. Only this library adds, removes or looks up an id in these keys.
--
-- KEYS: @waiting
-- A job lies in `due`; in `due_prioritized` when it has another priority than 0; in `due_paused` while its id is paused.
-- Its score there is its perform_in. `by_priority` places a job with a priority beside those of the same priority, the
-- oldest first. The score of a paused id is negative there: no look for work meets it.
-- Nearly always there is neither a paused id nor a priority; one command finds that out.
local PRIORITY_SPAN = 2 ^ 34
local any_special = redis.call('EXISTS', paused, by_priority) > 0
local any_paused = any_special and redis.call('ZCARD', paused) > 0
local any_prioritized = any_special and redis.call('ZCARD', by_priority) > 0
if any_paused then
  redis.call('ZCARD', due_paused)
end
if any_prioritized then
  redis.call('ZCARD', due_prioritized)
end

-- The score in `by_priority`. A time beyond the span of a priority (the year 2514) counts as its last one.
local function priority_score(priority, perform_in)
  local time = math.max(0, math.min(tonumber(perform_in), PRIORITY_SPAN - 1))
  return string.format('%.6f', priority * PRIORITY_SPAN + time)
end

-- The priority of a waiting job; 0 is the most urgent.
local function priority_of(id)
  local score = any_prioritized and redis.call('ZSCORE', by_priority, id)
  return score and math.abs(math.floor(tonumber(score) / PRIORITY_SPAN)) or 0
end

-- The key in which a waiting job of the id lies.
local function index_key(id)
  if any_paused and redis.call('ZSCORE', paused, id) then
    return due_paused
  end
  return any_prioritized and priority_of(id) > 0 and due_prioritized or due
end

-- The perform_in of a waiting job, nil or false when nothing of the id waits; and whether it is paused.
local function index_score(id)
  local score = redis.call('ZSCORE', due, id) or any_prioritized and redis.call('ZSCORE', due_prioritized, id)
  if score or not any_paused then
    return score, false
  end
  score = redis.call('ZSCORE', due_paused, id)
  return score, score and true
end

-- Takes waiting jobs out of wherever they lie: their ids may have been paused since.
local function index_remove(...)
  redis.call('ZREM', due, ...)
  if any_paused then
    redis.call('ZREM', due_paused, ...)
  end
  if any_prioritized then
    redis.call('ZREM', due_prioritized, ...)
    redis.call('ZREM', by_priority, ...)
  end
end

-- A waiting job, wherever it lay, is due at perform_in, with that priority.
local function index_put(id, perform_in, priority)
  if any_prioritized and priority ~= priority_of(id) then
    index_remove(id)
  end
  if priority > 0 then
    any_prioritized = true
    redis.call('ZADD', by_priority, priority_score(priority, perform_in), id)
  end
  local index = index_key(id)
  redis.call('ZADD', index, perform_in, id)
  if priority > 0 and index == due_paused then
    redis.call('ZADD', by_priority, priority_score(-priority, perform_in), id)
  end
end

-- Adds jobs of priority 0 that do not wait yet: {perform_in, id, ...}.
local function index_add(times)
  if not any_paused then
    redis.call('ZADD', due, 'NX', unpack(times))
    return
  end
  for i = 1, #times, 2 do
    redis.call('ZADD', index_key(times[i + 1]), 'NX', times[i], times[i + 1])
  end
end

-- Moves a waiting job after its id was paused or resumed: to where it lies from now on. Whether one waits.
local function index_move(id)
  local perform_in = index_score(id)
  if perform_in then
    local priority = priority_of(id)
    index_remove(id)
    index_put(id, perform_in, priority)
  end
  return perform_in
end

-- Due jobs in the order in which they run, see rules/priorities.py.
local prioritized_due
if any_prioritized then
  local LEAST_URGENT = 9

  -- Jobs that are due for longer than max_wait, whatever their priority, then the more urgent ones: id, perform_in, ...
  function prioritized_due(now, count, max_wait)
    local now_s = now / 1000000
    local long_ago = math.max(0, math.floor(now - max_wait * 1000000)) / 1000000
    local found = {}

    local function add(priority, from, to)
      local index = priority == 0 and due or by_priority
      local ids = redis.call('ZRANGEBYSCORE', index, from, to, 'WITHSCORES', 'LIMIT', 0, count)
      for i = 1, #ids, 2 do
        local since = tonumber(ids[i + 1]) - priority * PRIORITY_SPAN
        found[#found + 1] = {id = ids[i], since = since, place = #found, perform_in = priority == 0 and ids[i + 1]}
      end
    end

    for priority = 0, LEAST_URGENT do
      add(priority, priority == 0 and '-inf' or priority_score(priority, 0), '(' .. priority_score(priority, long_ago))
    end
    table.sort(found, function(one, other)
      return one.since < other.since or one.since == other.since and one.place < other.place
    end)
    for priority = 0, LEAST_URGENT do
      if #found < count then
        add(priority, priority_score(priority, long_ago), priority_score(priority, now_s))
      end
    end
    local taken = {}
    for i = 1, math.min(count, #found) do
      local perform_in = found[i].perform_in or index_score(found[i].id)
      -- A class knows times less exactly: one of its jobs may be due only in some us.
      if perform_in and tonumber(perform_in) <= now_s then
        taken[#taken + 1], taken[#taken + 2] = found[i].id, perform_in
      end
    end
    return taken
  end
end
