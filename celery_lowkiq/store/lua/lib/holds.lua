-- Ids that a death holds: a pause of the id that ends when none of its payloads is dead (docs/adr/0030-when-dead-hold.md).
--
-- KEYS: @waiting
-- USES: waiting_index
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
