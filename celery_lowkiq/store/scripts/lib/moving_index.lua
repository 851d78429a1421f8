-- The index `moving`: waiting jobs that no claim takes until a mover has sorted them (waiting_index.lua).
--
-- KEYS: @waiting
-- USES: in_migration waiting_index moving_job

-- Jobs of one command: `unpack` takes a limited number of values.
local HIDDEN = 1000

-- Hides all jobs with a priority from claims.
local function hide_prioritized()
  repeat
    local found = redis.call('ZRANGEBYSCORE', by_priority, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, HIDDEN)
    local hidden = {}
    for i = 1, #found, 2 do
      local priority = math.floor(tonumber(found[i + 1]) / PRIORITY_SPAN)
      hidden[i], hidden[i + 1] = priority_score(-priority, found[i + 1] - priority * PRIORITY_SPAN), found[i]
    end
    if #hidden > 0 then
      redis.call('ZADD', by_priority, unpack(hidden))
    end
  until #found == 0
end

-- Moves the jobs of an index to `moving`: adds the smaller one of the two to the other.
local function hold_index(index)
  local from, into, start = index, moving, 0
  if redis.call('ZCARD', index) > redis.call('ZCARD', moving) then
    from, into = moving, index
  end
  repeat
    local found = redis.call('ZRANGE', from, start, start + HIDDEN - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      found[i], found[i + 1] = found[i + 1], found[i]
    end
    if #found > 0 then
      redis.call('ZADD', into, unpack(found))
    end
    start = start + HIDDEN
  until #found == 0
  redis.call('DEL', from)
  if into == index then
    redis.call('RENAME', index, moving)
  end
end

-- Moves all waiting jobs to `moving`.
local function hold_all()
  for _, index in ipairs(any_special and {due, due_prioritized, due_paused} or {due}) do
    hold_index(index)
  end
  if any_special then
    hide_prioritized()
  end
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
