-- The index `moving`: waiting jobs that no claim takes until a mover has sorted them (waiting_index.lua).
--
-- KEYS: @waiting
-- USES: waiting_index
any_moving = true

-- Jobs that one script hides at most; `unpack` takes a limited number of values, too.
local HIDDEN = 1000

-- Members and scores of a sorted set, as arguments of ZADD; and the members.
local function entries_of(index, stop)
  local found, ids = redis.call('ZRANGE', index, 0, stop, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    found[i], found[i + 1] = found[i + 1], found[i]
  end
  return found, ids
end

-- Makes the scores of jobs negative in `by_priority`, so that no claim finds them.
local function hide_priorities(ids)
  local hidden = {}
  for i, score in ipairs(redis.call('ZMSCORE', by_priority, unpack(ids))) do
    local priority = score and math.floor(tonumber(score) / PRIORITY_SPAN) or 0
    if priority > 0 then
      hidden[#hidden + 1], hidden[#hidden + 2] = priority_score(-priority, score - priority * PRIORITY_SPAN), ids[i]
    end
  end
  if #hidden > 0 then
    redis.call('ZADD', by_priority, unpack(hidden))
  end
end

-- Moves jobs of an index to `moving`, at most `most`. Returns how many that cost. Much of `due` costs nothing where `moving` has
-- little: then these join it, and it takes their place.
local function hold_part(index, most)
  local waits = redis.call('ZCARD', moving)
  if index == due and waits < most and waits < redis.call('ZCARD', due) then
    local found = waits > 0 and entries_of(moving, -1)
    if found then
      redis.call('ZADD', due, unpack(found))
    end
    redis.call('RENAME', due, moving)
    return waits
  end
  local found, ids = entries_of(index, most - 1)
  if #ids == 0 then
    return 0
  end
  redis.call('ZADD', moving, unpack(found))
  redis.call('ZREM', index, unpack(ids))
  if index == due_prioritized then
    hide_priorities(ids)
  end
  return #ids
end

-- Moves waiting jobs to `moving`, at most HIDDEN. Returns whether others may be left.
local function hold_some()
  local left = HIDDEN
  for _, index in ipairs(any_special and {due, due_prioritized, due_paused} or {due}) do
    left = left - hold_part(index, left)
    if left <= 0 then
      return true
    end
  end
  return false
end

-- The perform_in of waiting jobs, most of which are in `moving`; false without one.
local function moving_scores(ids)
  local times = redis.call('ZMSCORE', moving, unpack(ids))
  for i, id in ipairs(ids) do
    times[i] = times[i] or index_score(id) or false
  end
  return times
end

-- Moves jobs from `moving` to their own indexes.
local function release_moving(ids)
  local times = #ids > 0 and redis.call('ZMSCORE', moving, unpack(ids)) or {}
  local found, plain = {}, {}
  for i, id in ipairs(ids) do
    if times[i] then
      found[#found + 1] = id
      plain[#plain + 1], plain[#plain + 2] = times[i], id
    end
  end
  if #found == 0 then
    return
  end
  redis.call('ZREM', moving, unpack(found))
  if not (any_paused or any_prioritized) then
    due_add(plain)
    return
  end
  for i = 1, #plain, 2 do
    index_put(plain[i + 1], plain[i], priority_of(plain[i + 1]))
  end
end
