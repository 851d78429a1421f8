-- The morgue: jobs that run again only when an operator requeues them.
--
-- KEYS: meta @morgue
-- ARGV: merge
-- USES: payloads.change policies
local morgue = {records = dead_jobs, spill = dead_spill, spill_order = dead_spill_order}

local function remove_dead(id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', dead_ids, id)
  redis.call('HDEL', dead_errors, id)
end

local function bury(id, items, message, updated_at)
  if #items == 0 then
    return
  end
  redis.call('ZADD', dead, updated_at, id)
  redis.call('ZADD', dead_ids, 0, id)
  redis.call('HSET', dead_errors, id, message)
  redis.call('HINCRBY', meta, 'dead', #items)
  -- Their calls end with the burial: a requeued payload has no call records.
  for _, item in ipairs(items) do
    item[4] = ''
  end
  set_add(morgue, id, items, false)
  if hooks.died then
    hooks.died(id, updated_at)
  end
end

-- Dead jobs change only while their shard is in no migration: parts of an id, with or without the mark that holds it, may be in
-- two shards.
-- Returns an error reply for a shard in a migration.
local function refuse_in_migration()
  local route = redis.call('HGET', meta, 'shards')
  if route and string.find(route, '%D') then
    return redis.error_reply('SHARDS ' .. route)
  end
end

-- PART: merge
-- KEYS: @morgue
-- USES: morgue
-- Adds dead items that come from elsewhere. Of two deaths of an id, time and error of the later one stay.
local function merge_dead(id, items, updated_at, message, older)
  local known = redis.call('ZSCORE', dead, id)
  if not known or tonumber(known) < tonumber(updated_at) then
    redis.call('ZADD', dead, updated_at, id)
    redis.call('HSET', dead_errors, id, message)
  end
  redis.call('ZADD', dead_ids, 0, id)
  set_add(morgue, id, items, older)
end

-- PART: history
-- Deletes crash mark and log of tries of an id without waiting or claimed job.
--
-- KEYS: jobs processing dead tries crash_marks
-- The log of tries stays while the id is in the morgue.
local function forget_history(id)
  if redis.call('HEXISTS', jobs, id) == 1 or redis.call('HEXISTS', processing, id) == 1 then
    return
  end
  redis.call('HDEL', crash_marks, id)
  if not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
  end
end
