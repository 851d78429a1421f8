-- Where waiting jobs lie, when the next is due, and how that is announced.

-- PART: due
-- The index `due`, in which all waiting jobs are while no id is paused, no job has a priority, and the shard is not in a
-- migration (part `index`).
--
-- KEYS: @waiting

-- One command finds out whether there is a paused id, or a job that has a priority or is being moved.
local any_special = redis.call('EXISTS', paused, by_priority, moving) > 0
local any_paused = any_special and redis.call('ZCARD', paused) > 0
local any_prioritized = any_special and redis.call('ZCARD', by_priority) > 0
local any_moving = any_special and redis.call('ZCARD', moving) > 0
if any_paused then
  redis.call('ZCARD', due_paused)
end
if any_prioritized then
  redis.call('ZCARD', due_prioritized)
end

local function due_remove(...)
  redis.call('ZREM', due, ...)
end

-- Adds jobs, {perform_in, id, ...}; one that is waiting keeps its place.
local function due_add(times)
  redis.call('ZADD', due, 'NX', unpack(times))
end

-- PART: index
-- The indexes of waiting jobs. Only this part and `due` add, remove or look up an id in these keys.
--
-- KEYS: @waiting
-- USES: waiting.due
-- A job is in `due`; with a priority other than 0 in `due_prioritized`; while its id is paused in `due_paused`. Its score there
-- is its perform_in. `by_priority` also has each job with a priority, by priority and perform_in; the score of a paused one
-- is negative there, so that no claim finds it. In a migration, a job that may belong elsewhere, or may have more in another
-- shard, is in `moving` in place of these, whatever happens to it, until a mover takes it out (migration.lua).

-- Scores in `by_priority`: priority and perform_in in one number.
local PRIORITY_SPAN = 2 ^ 34
local LEAST_URGENT = 9

-- A time beyond the span of a priority (the year 2514) counts as its last one.
local function priority_score(priority, perform_in)
  local time = math.max(0, math.min(tonumber(perform_in), PRIORITY_SPAN - 1))
  return string.format('%.6f', priority * PRIORITY_SPAN + time)
end

-- The priority of a waiting job; 0 is the most urgent.
local function priority_of(id)
  local score = any_prioritized and redis.call('ZSCORE', by_priority, id)
  return score and math.abs(math.floor(tonumber(score) / PRIORITY_SPAN)) or 0
end

-- The perform_in of a job that waits for a mover, in a migration; nil or false for others.
local function is_moving(id)
  return any_moving and redis.call('ZSCORE', moving, id)
end

-- The index of a waiting job of the id.
local function index_key(id)
  if any_moving and is_moving(id) then
    return moving
  elseif any_paused and redis.call('ZSCORE', paused, id) then
    return due_paused
  end
  return any_prioritized and priority_of(id) > 0 and due_prioritized or due
end

-- The perform_in of a waiting job, nil or false without one; and whether it is paused.
local function index_score(id)
  local score = redis.call('ZSCORE', due, id) or any_prioritized and redis.call('ZSCORE', due_prioritized, id)
  local paused_score = not score and any_paused and redis.call('ZSCORE', due_paused, id)
  return score or paused_score or is_moving(id), paused_score and true
end

-- Removes waiting jobs from each index: their ids may have been paused after they were added.
local function index_remove(...)
  due_remove(...)
  if any_paused then
    redis.call('ZREM', due_paused, ...)
  end
  if any_prioritized then
    redis.call('ZREM', due_prioritized, ...)
    redis.call('ZREM', by_priority, ...)
  end
  if any_moving then
    redis.call('ZREM', moving, ...)
  end
end

-- Adds a waiting job, or moves it, to perform_in and priority.
local function index_put(id, perform_in, priority)
  local is_hidden = any_moving and is_moving(id)
  if is_hidden then
    redis.call('ZREM', by_priority, id)
  elseif any_prioritized and priority ~= priority_of(id) then
    index_remove(id)
  end
  if priority > 0 then
    any_prioritized = true
    redis.call('ZADD', by_priority, priority_score(priority, perform_in), id)
  end
  local index = is_hidden and moving or index_key(id)
  redis.call('ZADD', index, perform_in, id)
  if priority > 0 and (index == due_paused or index == moving) then
    redis.call('ZADD', by_priority, priority_score(-priority, perform_in), id)
  end
end

-- Adds jobs of priority 0, {perform_in, id, ...}; one that is waiting keeps its place.
local function index_add(times)
  if not (any_paused or any_moving) then
    due_add(times)
    return
  end
  for i = 1, #times, 2 do
    redis.call('ZADD', index_key(times[i + 1]), 'NX', times[i], times[i + 1])
  end
end

-- Due jobs in the order in which they run (rules/policies.py).
local prioritized_due
if any_prioritized then
  -- Jobs that are due for longer than max_wait, of any priority; then others by priority: id, perform_in, ...
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
      -- `by_priority` has times with a smaller precision: a job may be due some us later.
      if perform_in and tonumber(perform_in) <= now_s then
        taken[#taken + 1], taken[#taken + 2] = found[i].id, perform_in
      end
    end
    return taken
  end
end

-- Puts a new job into `moving`, where it stays when it is added to an index.
local function index_hold(id, perform_in)
  redis.call('ZADD', moving, 'NX', perform_in, id)
end

-- Moves a waiting job to `moving`.
local function hold(id)
  if not is_moving(id) then
    local perform_in, priority = index_score(id), priority_of(id)
    index_remove(id)
    index_hold(id, perform_in)
    index_put(id, perform_in, priority)
  end
end

-- PART: next_due
-- The smallest perform_in among ids that may be claimed ('' when there is no such id).
--
-- KEYS: meta @waiting claimed
-- USES: waiting.due
-- Ids in processing are skipped. The head of the index has at most as many of them as `claimed` has members; mostly none.
local shard_paused
do
  local pauses = redis.call('HMGET', meta, 'paused', 'queue_paused')
  shard_paused = pauses[1] or pauses[2]
end

local function next_due(index)
  if shard_paused then
    return ''
  end
  local soonest = ''
  local heads = redis.call('ZRANGE', index or due, 0, 0, 'WITHSCORES')
  if heads[1] and redis.call('ZSCORE', claimed, heads[1]) then
    heads = redis.call('ZRANGE', index or due, 1, redis.call('ZCARD', claimed), 'WITHSCORES')
  end
  for i = 1, #heads, 2 do
    if not redis.call('ZSCORE', claimed, heads[i]) then
      soonest = heads[i + 1]
      break
    end
  end
  local other = any_prioritized and not index and next_due(due_prioritized) or ''
  return (soonest == '' or other ~= '' and tonumber(other) < tonumber(soonest)) and other or soonest
end

-- PART: wake
-- Announces a smaller first perform_in of the shard on the queue's channel.
--
-- ARGV: channel index
-- USES: waiting.due
-- A larger one is not announced: workers poll at the earlier time that they know.
local function first_due()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  local other = any_prioritized and redis.call('ZRANGE', due_prioritized, 0, 0, 'WITHSCORES')[2]
  return other and (not first or tonumber(other) < tonumber(first)) and other or first
end

local function wake(before)
  local after = first_due()
  if after and (not before or tonumber(after) < tonumber(before)) then
    redis.call('PUBLISH', channel, index .. ' ' .. after)
  end
end

-- PART: jobs
-- The payload sets of waiting jobs, and their removal.
--
-- KEYS: jobs spill spill_order failed errors
-- USES: meta.payload_count waiting.index policies policies.due
local waiting = {records = jobs, spill = spill, spill_order = spill_order}

-- Removes all that is stored of a waiting job beside its payloads.
local function remove_waiting(id)
  index_remove(id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
  if hooks.clear then
    hooks.clear(id)
  end
end

-- PART: holds
-- Ids that a death holds: a pause of the id that ends when none of its payloads is dead (docs/adr/0030-when-dead-hold.md).
--
-- KEYS: @waiting
-- USES: waiting.index
-- `paused` has since when an id is paused. Of an id that a death holds, it has the negative of since when; less BOTH when the
-- id is paused, too.
local BOTH = 4294967296

-- Since when a death holds an id, and since when it is paused; nil for each that does not apply.
local function read_pause(score)
  local number = tonumber(score or '')
  if not number or number >= 0 then
    return nil, number
  elseif number > -BOTH then
    return -number, nil
  end
  return -number - BOTH, -number - BOTH
end

local function pause_of(id)
  if any_paused then
    return read_pause(redis.call('ZSCORE', paused, id))
  end
end

-- Moves a waiting job to its other index after its id was paused or resumed.
local function index_move(id)
  local perform_in = not is_moving(id) and index_score(id)
  if perform_in then
    local priority = priority_of(id)
    index_remove(id)
    index_put(id, perform_in, priority)
  end
end

local function set_pause(id, held_at, paused_at)
  if held_at or paused_at then
    local score = held_at and -held_at - (paused_at and BOTH or 0) or paused_at
    redis.call('ZADD', paused, string.format('%.17g', score), id)
    any_paused = true
  else
    redis.call('ZREM', paused, id)
  end
  index_move(id)
end

local function begin_hold(id, at)
  local held_at, paused_at = pause_of(id)
  if not held_at then
    set_pause(id, tonumber(at), paused_at)
  end
  return not held_at
end

local function end_hold(id)
  local held_at, paused_at = pause_of(id)
  if held_at then
    set_pause(id, nil, paused_at)
  end
  return held_at
end
