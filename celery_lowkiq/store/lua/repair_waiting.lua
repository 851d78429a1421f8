-- Makes the indexes of waiting jobs consistent with their payloads, after repair_payload_sets.
--
-- ROLE: operator
-- KEYS: meta spill @waiting! jobs spill_order failed errors tries crash_marks dead
-- ARGV: default_priority channel index part cursor limit
--   default_priority: for a job whose priority was lost; limit: approximate number of entries to read
--   part: jobs, then due, due_prioritized, due_paused, moving, by_priority, failed, errors
-- USES: time payloads waiting.index
-- FLAGS: allow-oom
-- Returns: {cursor, jobs that are due now since their time was lost, other entries rewritten, jobs whose payloads are
--   lost}.
-- Cost: O(limit log n). Repeated: no effect.
local PLACES = {due, due_prioritized, due_paused, moving, by_priority}
-- In a migration, a job that has lost its place may belong to another shard.
local in_migration = string.find(redis.call('HGET', meta, 'shards') or '', '%D')
local now = seconds(now_us())
local undated, mended, lost = 0, 0, 0

local function delete_job(id)
  for _, place in ipairs({due, due_prioritized, due_paused, moving, by_priority, failed}) do
    redis.call('ZREM', place, id)
  end
  redis.call('HDEL', jobs, id)
  redis.call('HDEL', errors, id)
  redis.call('HDEL', crash_marks, id)
  redis.call('HDEL', tries, id)
end

-- Returns retry_count and error of the last logged try.
local function last_try(id)
  local log = redis.call('HGET', tries, id) or ''
  local count, text = string.match(string.match(log, '^.*\n(.*)$') or log, '^[^\t]*\t(%d+)\t[^\t]*\t(.*)$')
  return count or '0', text or ''
end

local function priority_of(id)
  local score = tonumber(redis.call('ZSCORE', by_priority, id) or '')
  if score then
    local priority = math.floor(score / PRIORITY_SPAN)
    if priority ~= 0 and math.abs(priority) <= LEAST_URGENT then
      return math.abs(priority), string.format('%.6f', score - priority * PRIORITY_SPAN)
    end
  end
end

-- Writes the indexes of a waiting job; returns true when they were right.
local function index_put(id, perform_in, priority, place)
  local wanted = {[place] = perform_in}
  if priority > 0 then
    local signed = (place == due_paused or place == moving) and -priority or priority
    wanted[by_priority] = redis.call('ZSCORE', by_priority, id)
    if not wanted[by_priority] or math.floor(tonumber(wanted[by_priority]) / PRIORITY_SPAN) ~= signed then
      wanted[by_priority] = priority_score(signed, perform_in)
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

-- Each job belongs to one index. The id of a job in `due_paused` was paused, or, when payloads of it are dead, held by these;
-- a lost time becomes now.
function parts.jobs(id, record)
  if record == SPILLED and redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) == 0 then
    -- `spill_order` may have been lost again since repair_payload_sets: the next repair restores the payloads.
    if redis.call('HLEN', spill) - redis.call('ZCARD', spill_order) ~= tonumber(redis.call('HGET', meta, 'spill_difference') or 0) then
      return
    end
    delete_job(id)
    lost = lost + 1
    return
  end
  local at_due, at_prioritized, at_paused = redis.call('ZSCORE', due, id), redis.call('ZSCORE', due_prioritized, id), redis.call('ZSCORE', due_paused, id)
  local at_moving = redis.call('ZSCORE', moving, id)
  local priority, time_by_priority = priority_of(id)
  if at_paused and not redis.call('ZSCORE', paused, id) then
    redis.call('ZADD', paused, redis.call('ZSCORE', dead, id) and '-' .. now or now, id)
    mended = mended + 1
  end
  local is_paused = redis.call('ZSCORE', paused, id)
  priority = priority or at_prioritized and tonumber(default_priority) or 0
  local known = at_due or at_prioritized or at_paused
  local time = known or at_moving or time_by_priority
  local place = is_paused and due_paused or priority > 0 and due_prioritized or due
  if index_put(id, time or now, priority, not known and (at_moving or in_migration) and moving or place) then
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
  elseif redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) > 0 then
    redis.call('HSET', jobs, id, SPILLED)
    mended = mended + 1
  else
    delete_job(id)
    lost = lost + 1
  end
end
parts.due_prioritized, parts.due_paused, parts.moving = parts.due, parts.due, parts.due

-- Entries of jobs that do not wait are removed without counting: lost jobs are counted by their due times.
function parts.by_priority(id)
  if not (redis.call('ZSCORE', due_prioritized, id) or redis.call('ZSCORE', due_paused, id) or redis.call('ZSCORE', moving, id)) then
    redis.call('ZREM', by_priority, id)
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

local KEY = {jobs = jobs, due = due, due_prioritized = due_prioritized, due_paused = due_paused, moving = moving, by_priority = by_priority, failed = failed, errors = errors}
local scan = (part == 'jobs' or part == 'errors') and 'HSCAN' or 'ZSCAN'
local found = redis.call(scan, KEY[part], cursor, 'COUNT', limit)
for i = 1, #found[2], 2 do
  parts[part](found[2][i], found[2][i + 1])
end
if undated + mended > 0 then
  redis.call('PUBLISH', channel, index .. ' ' .. now)
end
return {found[1], undated, mended, lost}
