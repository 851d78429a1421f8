-- Needs KEYS due, jobs, spill, order, failed, errors, processing, tries?, calls?, first?, early?, and time, policy, keep, stale, held.
-- What policies say of a call that arrives.
local length, is_stale, full, forgo, has_place, given_way, told, later
if policy ~= '' or any_ranked then
  length = asked.length and redis.call('ZCARD', due) + redis.call('ZCARD', ranked)
  if length and any_paused then
    length = length + redis.call('ZCARD', held)
  end
  local LOOKED_AT = 16
  if asked.full == 'drop_oldest' then
    redis.call('HLEN', tries)
  end

  -- Whether something newer was processed for the id.
  function is_stale(id, score)
    local peak = asked.stale and peak_of(id)
    return peak and tonumber(score) < peak
  end

  -- Ids from ARGV's first to its last job of which nothing waits, but for those that only stale calls are of.
  local function new_ids(last_job, now_s)
    local new, seen = 0, {}
    for i = rest, last_job, 4 do
      local id, score = ARGV[i], ARGV[i + 2]
      if not seen[id] and not is_stale(id, score == '' and now_s or score) then
        new = new + 1 - redis.call('HEXISTS', jobs, id)
        seen[id] = true
      end
    end
    return new
  end

  -- An error when the shard has no place for so many calls, of a task that wants to hear of it.
  function full(last_job, now_s)
    local new = asked.full == 'refuse' and new_ids(last_job, now_s) or 0
    if new > 0 and length + new > asked.length then
      return redis.error_reply('FULL ' .. length .. ' ' .. asked.length)
    end
  end

  -- Positions of calls that were dropped, and {id, number of the shard's last call, ...} of jobs that gave way to others:
  -- only those that somebody hears of.
  local forgone, evicted = {}, {}

  local function any_recorded(items)
    for _, item in ipairs(items) do
      if item[4] ~= '' then
        return true
      end
    end
  end

  -- Drops the call of the job in ARGV from `i` on, with its record.
  function forgo(i, record)
    redis.call('HINCRBY', meta, 'dropped', 1)
    if record then
      redis.call('ZREM', calls, record)
      forgone[#forgone + 1] = (i - rest) / 4
    end
  end

  -- Makes place by dropping the job that is due first, of those that are dropped at once; those of priority 0 last.
  local function evict()
    local ids = any_ranked and redis.call('ZRANGE', ranked, 0, LOOKED_AT - 1) or {}
    for _, id in ipairs(redis.call('ZRANGE', due, 0, LOOKED_AT - 1)) do
      ids[#ids + 1] = id
    end
    for _, id in ipairs(ids) do
      local record = redis.call('HGET', jobs, id)
      if record ~= SPILLED then
        local items = unpack_items(record or '')
        redis.call('HDEL', jobs, id)
        lift(id)
        redis.call('ZREM', failed, id)
        redis.call('HDEL', errors, id)
        redis.call('HDEL', tries, id)
        forget_policy(id)
        redis.call('HINCRBY', meta, 'dropped', #items)
        if any_recorded(items) then
          evicted[#evicted + 1], evicted[#evicted + 2] = id, redis.call('HGET', meta, 'call') or '0'
        end
        return true
      end
    end
  end

  -- Whether there is a place for a new job.
  function has_place()
    if not asked.length or asked.full == 'refuse' or length < asked.length then
      length = (length or 0) + 1
      return true
    end
    return asked.full == 'drop_oldest' and evict()
  end

  -- What a repeated push is told again, as text behind its number: positions, and in lines ids and numbers of calls.
  function given_way()
    if #forgone + #evicted == 0 then
      return ''
    end
    table.insert(evicted, 1, table.concat(forgone, ' '))
    return table.concat(evicted, '\n')
  end

  -- The same as a reply, with what is processed of the jobs just now.
  function told(text)
    local reply = {string.match(text, '^[%d ]*')}
    for id, last_call in string.gmatch(text, '\n([^\n]+)\n(%d+)') do
      for _, value in ipairs({id, last_call, redis.call('HGET', processing, id) or ''}) do
        reply[#reply + 1] = value
      end
    end
    return reply
  end

  -- When a job that waits for its retry is due after one more call for `time`; nil leaves it as it is.
  local function after_failure(id, time)
    local own = asked.now and redis.call('ZSCORE', index_of(id), id)
    if own and tonumber(own) > tonumber(time) then
      redis.call('HSETNX', early, id, own)
      return time
    end
  end

  -- When a job that has not failed is due after one more call, not before `asked_for`; nil leaves it as it is: only calls
  -- have put it there that are claimed by now.
  local function debounced(id, waits, asked_for, now)
    local known = waits and redis.call('HGET', first, id)
    if waits and not known then
      return nil
    end
    local began, floor = string.match(known or '', '^(%d+) (%S+)$')
    began = tonumber(began) or now
    floor = tonumber(floor or 0) > tonumber(asked_for) and floor or asked_for
    redis.call('HSET', first, id, string.format('%.0f ', began) .. floor)
    local due_at = now + asked.debounce * 1000000
    if asked.debounce_max then
      due_at = math.min(due_at, began + asked.debounce_max * 1000000)
    end
    due_at = seconds(due_at)
    return tonumber(floor) > tonumber(due_at) and floor or due_at
  end

  -- When a job is due after one more call for `time`, which the caller has given or not; nil leaves it as it is.
  function later(id, waits, time, given, now)
    if waits and redis.call('ZSCORE', failed, id) then
      return after_failure(id, time)
    elseif asked.debounce then
      return debounced(id, waits, given and time or '0', now)
    end
    return not waits and time or nil
  end
end
