-- Makes the indexes of dead jobs consistent with their payloads, after repair_payload_sets.
--
-- ROLE: operator
-- KEYS: dead dead_ids dead_jobs dead_spill_order dead_errors tries
-- ARGV: part cursor limit
--   part: dead_jobs, then dead, dead_ids, dead_errors; limit: approximate number of entries to read
-- USES: time payloads
-- FLAGS: allow-oom
-- Returns: {cursor, jobs restored to the indexes, jobs whose payloads are lost}.
-- Cost: O(limit log n). Repeated: no effect.
local now = seconds(now_us())
local mended, lost = 0, 0

local function delete_job(id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', dead_ids, id)
  redis.call('HDEL', dead_jobs, id)
  redis.call('HDEL', dead_errors, id)
  lost = lost + 1
end

local function last_error(id)
  local log = redis.call('HGET', tries, id) or ''
  return string.match(log, '^.*[\t\n](.*)$') or log
end

local parts = {}

function parts.dead_jobs(id, record)
  if record == SPILLED and redis.call('ZLEXCOUNT', dead_spill_order, lex_min(id), lex_max(id)) == 0 then
    delete_job(id)
    return
  end
  local changed = redis.call('ZADD', dead, 'NX', now, id) + redis.call('ZADD', dead_ids, 0, id)
  if redis.call('HEXISTS', dead_errors, id) == 0 then
    redis.call('HSET', dead_errors, id, last_error(id))
    changed = 1
  end
  mended = mended + (changed > 0 and 1 or 0)
end

function parts.dead(id)
  if redis.call('HEXISTS', dead_jobs, id) == 0 then
    delete_job(id)
  end
end
parts.dead_ids = parts.dead

function parts.dead_errors(id)
  if redis.call('HEXISTS', dead_jobs, id) == 0 then
    redis.call('HDEL', dead_errors, id)
  end
end

local KEY = {dead_jobs = dead_jobs, dead = dead, dead_ids = dead_ids, dead_errors = dead_errors}
local scan = (part == 'dead_jobs' or part == 'dead_errors') and 'HSCAN' or 'ZSCAN'
local found = redis.call(scan, KEY[part], cursor, 'COUNT', limit)
for i = 1, #found[2], 2 do
  parts[part](found[2][i], found[2][i + 1])
end
return {found[1], mended, lost}
