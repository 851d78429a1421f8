-- Makes the indexes of waiting jobs consistent with their payloads, after repair_bags.
--
-- KEYS: meta spill due ranked classes paused held jobs order failed errors tries deaths
-- ARGV: rank channel index part cursor limit
--   rank: for a job whose priority was lost; limit: approximate number of entries to read
--   part: jobs, then due, ranked, held, classes, failed, errors
-- USES: time bag_read
-- FLAGS: allow-oom
-- Returns: {cursor, jobs that are due now since their time was lost, other entries rewritten, jobs whose payloads are
--   lost}.
-- Cost: O(limit log n). Repeated: no effect.
local CLASS = 2 ^ 34
local LEAST_URGENT = 9
local PLACES = {due, ranked, held, classes}
local now = seconds(now_us())
local undated, mended, lost = 0, 0, 0

local function forget(id)
  for _, place in ipairs({due, ranked, held, classes, failed}) do
    redis.call('ZREM', place, id)
  end
  redis.call('HDEL', jobs, id)
  redis.call('HDEL', errors, id)
  redis.call('HDEL', deaths, id)
  redis.call('HDEL', tries, id)
end

-- Returns retry_count and error of the last logged try.
local function last_try(id)
  local log = redis.call('HGET', tries, id) or ''
  local count, text = string.match(log, '([^\t\n]*)\t[^\t\n]*\t([^\n]*)$')
  return string.match(count or '', '^%d+$') or '0', text or ''
end

local function class_of(id)
  local score = tonumber(redis.call('ZSCORE', classes, id) or '')
  if score then
    local class = math.floor(score / CLASS)
    if class ~= 0 and math.abs(class) <= LEAST_URGENT then
      return math.abs(class), string.format('%.6f', score - class * CLASS)
    end
  end
end

-- Writes the indexes of a waiting job; returns true when they were right.
local function lay(id, perform_in, class, place)
  local wanted = {[place] = perform_in}
  if class > 0 then
    local signed = place == held and -class or class
    local time = math.max(0, math.min(tonumber(perform_in), CLASS - 1))
    wanted[classes] = redis.call('ZSCORE', classes, id)
    if not wanted[classes] or math.floor(tonumber(wanted[classes]) / CLASS) ~= signed then
      wanted[classes] = string.format('%.6f', signed * CLASS + time)
    end
  end
  local same = true
  for _, key in ipairs(PLACES) do
    local score = redis.call('ZSCORE', key, id)
    if wanted[key] and score ~= wanted[key] then
      redis.call('ZADD', key, wanted[key], id)
    elseif score and not wanted[key] then
      redis.call('ZREM', key, id)
    end
    same = same and (score or nil) == wanted[key]
  end
  return same
end

local parts = {}

-- Each job belongs to one index. A job in `held` was paused; a lost time becomes now.
function parts.jobs(id, record)
  if record == SPILLED and redis.call('ZLEXCOUNT', order, lex_min(id), lex_max(id)) == 0 then
    -- `order` may have been lost again since repair_bags: the next repair restores the payloads.
    if redis.call('HLEN', spill) - redis.call('ZCARD', order) ~= tonumber(redis.call('HGET', meta, 'apart') or 0) then
      return
    end
    forget(id)
    lost = lost + 1
    return
  end
  local at_due, at_ranked, at_held = redis.call('ZSCORE', due, id), redis.call('ZSCORE', ranked, id), redis.call('ZSCORE', held, id)
  local class, class_time = class_of(id)
  if at_held and not redis.call('ZSCORE', paused, id) then
    redis.call('ZADD', paused, now, id)
    mended = mended + 1
  end
  local is_paused = redis.call('ZSCORE', paused, id)
  class = class or at_ranked and tonumber(rank) or 0
  local time = at_due or at_ranked or at_held or class_time
  if lay(id, time or now, class, is_paused and held or class > 0 and ranked or due) then
    return
  elseif time then
    mended = mended + 1
  else
    undated = undated + 1
  end
end

function parts.due(id)
  if redis.call('HEXISTS', jobs, id) == 1 then
    return
  elseif redis.call('ZLEXCOUNT', order, lex_min(id), lex_max(id)) > 0 then
    redis.call('HSET', jobs, id, SPILLED)
    mended = mended + 1
  else
    forget(id)
    lost = lost + 1
  end
end
parts.ranked, parts.held = parts.due, parts.due

-- Entries of jobs that do not wait are removed without counting: lost jobs are counted by their due times.
function parts.classes(id)
  if not (redis.call('ZSCORE', ranked, id) or redis.call('ZSCORE', held, id)) then
    redis.call('ZREM', classes, id)
  end
end

function parts.failed(id)
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('ZREM', failed, id)
  elseif redis.call('HEXISTS', errors, id) == 0 then
    local _, text = last_try(id)
    redis.call('HSET', errors, id, text)
    mended = mended + 1
  end
end

function parts.errors(id)
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', errors, id)
  elseif not redis.call('ZSCORE', failed, id) then
    redis.call('ZADD', failed, (last_try(id)), id)
    mended = mended + 1
  end
end

local KEY = {jobs = jobs, due = due, ranked = ranked, held = held, classes = classes, failed = failed, errors = errors}
local scan = (part == 'jobs' or part == 'errors') and 'HSCAN' or 'ZSCAN'
local found = redis.call(scan, KEY[part], cursor, 'COUNT', limit)
for i = 1, #found[2], 2 do
  parts[part](found[2][i], found[2][i + 1])
end
if undated + mended > 0 then
  redis.call('PUBLISH', channel, index .. ' ' .. now)
end
return {found[1], undated, mended, lost}
