-- Needs KEYS due, jobs, spill, order, failed, errors, processing, first?, early?, and time, policy, keep, stale, held.
-- What policies say of a call that arrives.
local length = asked.length and redis.call('ZCARD', due) + (any_paused and redis.call('ZCARD', held) or 0)
local LOOKED_AT = 16

-- Ids from ARGV's first to its last job of which nothing waits.
local function new_ids(last_job)
  local new, seen = 0, {}
  for i = rest, last_job, 4 do
    if not seen[ARGV[i]] and redis.call('HEXISTS', jobs, ARGV[i]) == 0 then
      new = new + 1
    end
    seen[ARGV[i]] = true
  end
  return new
end

-- An error when the shard has no place for so many calls, of a task that wants to hear of it.
local function full(last_job)
  local new = asked.full == 'refuse' and new_ids(last_job) or 0
  if new > 0 and length + new > asked.length then
    return redis.error_reply('FULL ' .. length .. ' ' .. asked.length)
  end
end

-- Makes place by dropping the job that is due first, of those that are dropped at once. Returns what its calls are found
-- by, as remove does, or nothing.
local function evict()
  for _, id in ipairs(redis.call('ZRANGE', due, 0, LOOKED_AT - 1)) do
    local record = redis.call('HGET', jobs, id)
    if record ~= SPILLED then
      redis.call('HDEL', jobs, id)
      redis.call('ZREM', due, id)
      redis.call('ZREM', failed, id)
      redis.call('HDEL', errors, id)
      forget_policy(id)
      redis.call('HINCRBY', meta, 'dropped', #unpack_items(record or ''))
      return {id, redis.call('HGET', meta, 'call') or '0', redis.call('HGET', processing, id) or ''}
    end
  end
end

-- When a job that waits for its retry is due after one more call for `time`; nil leaves it as it is.
local function after_failure(id, time)
  local own = asked.now and redis.call('ZSCORE', index_of(id), id)
  if own and tonumber(own) > tonumber(time) then
    redis.call('HSETNX', early, id, own)
    return time
  end
end

-- When a job that has not failed is due after one more call for `time`.
local function debounced(id, now, time)
  local known = redis.call('HGET', first, id)
  local began, floor = string.match(known or '', '^(%d+) (%S+)$')
  began = tonumber(began) or now
  floor = math.max(tonumber(floor) or 0, tonumber(time))
  redis.call('HSET', first, id, string.format('%.0f %.6f', began, floor))
  local due_at = now + asked.debounce * 1000000
  if asked.debounce_max then
    due_at = math.min(due_at, began + asked.debounce_max * 1000000)
  end
  return seconds(math.max(due_at, floor * 1000000))
end
