-- What policies decide about a call that arrives.
--
-- KEYS: meta jobs failed errors processing tries calls debounce early_due
-- USES: time policy keep_highest drop_stale waiting_index
local length, is_stale, length_refusal, drop_call, make_room, drops_text, drops_reply, due_after
if policy ~= '' or any_prioritized then
  length = options.max_length and redis.call('ZCARD', due) + redis.call('ZCARD', due_prioritized)
  if length and any_paused then
    length = length + redis.call('ZCARD', due_paused)
  end
  local EVICTION_CANDIDATES = 16
  if options.when_full == 'drop_oldest' then
    redis.call('HLEN', tries)
  end

  -- Whether something newer was processed for the id.
  function is_stale(id, score)
    local done_score = options.drop_stale and done_score_of(id)
    return done_score and tonumber(score) < done_score
  end

  -- Counts ids of the jobs up to last_job that have no waiting job and at least one call that is not stale.
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
  function length_refusal(last_job, now_s)
    local new = options.when_full == 'refuse' and new_ids(last_job, now_s) or 0
    if new > 0 and length + new > options.max_length then
      return redis.error_reply('FULL ' .. length .. ' ' .. options.max_length)
    end
  end

  -- Positions of dropped calls, and {id, number of the shard's last call, processing record or '', ...} of evicted jobs;
  -- only those with call records.
  local dropped_calls, evicted = {}, {}

  local function any_recorded(items)
    for _, item in ipairs(items) do
      if item[4] ~= '' then
        return true
      end
    end
  end

  -- Drops the call of the job in ARGV from `i` on, with its record.
  function drop_call(i, record)
    redis.call('HINCRBY', meta, 'dropped', 1)
    if record then
      redis.call('ZREM', calls, record)
      dropped_calls[#dropped_calls + 1] = (i - rest) / 4
    end
  end

  -- Makes place by dropping the job that is due first, of those that are dropped at once; those of priority 0 last.
  local function evict()
    local ids = any_prioritized and redis.call('ZRANGE', due_prioritized, 0, EVICTION_CANDIDATES - 1) or {}
    for _, id in ipairs(redis.call('ZRANGE', due, 0, EVICTION_CANDIDATES - 1)) do
      ids[#ids + 1] = id
    end
    for _, id in ipairs(ids) do
      local record = redis.call('HGET', jobs, id)
      if record ~= SPILLED then
        local items = unpack_items(record or '')
        redis.call('HDEL', jobs, id)
        index_remove(id)
        redis.call('ZREM', failed, id)
        redis.call('HDEL', errors, id)
        redis.call('HDEL', tries, id)
        clear_policy_state(id)
        redis.call('HINCRBY', meta, 'dropped', #items)
        if any_recorded(items) then
          local last_call = redis.call('HGET', meta, 'last_call') or '0'
          for _, value in ipairs({id, last_call, redis.call('HGET', processing, id) or ''}) do
            evicted[#evicted + 1] = value
          end
        end
        return true
      end
    end
  end

  -- Whether there is a place for a new job.
  function make_room()
    if not options.max_length or options.when_full == 'refuse' or length < options.max_length then
      length = (length or 0) + 1
      return true
    end
    return options.when_full == 'drop_oldest' and evict()
  end

  -- The reply as text, which the sender's entry keeps for a repeated push: positions in a line, then each value behind
  -- its length. The processing records are those of the eviction: payloads that were processed then may wait again when
  -- the push is repeated, and their calls with them.
  function drops_text()
    if #dropped_calls + #evicted == 0 then
      return ''
    end
    local parts = {table.concat(dropped_calls, ' ')}
    for _, value in ipairs(evicted) do
      parts[#parts + 1] = #value .. ' ' .. value
    end
    return table.concat(parts, '\n')
  end

  function drops_reply(text)
    local reply = {string.match(text, '^[%d ]*')}
    local at = #reply[1] + 1
    while at <= #text do
      local _, stop, length = string.find(text, '^\n(%d+) ', at)
      at = stop + 1 + length
      reply[#reply + 1] = string.sub(text, stop + 1, at - 1)
    end
    return reply
  end

  -- When a job that waits for its retry is due after one more call for `time`; nil leaves it as it is.
  local function after_failure(id, time)
    local own = options.due_on_push and index_score(id)
    if own and tonumber(own) > tonumber(time) then
      redis.call('HSETNX', early_due, id, own)
      return time
    end
  end

  -- When a job that has not failed is due after one more call, not before `asked_for`; nil leaves it as it is: only calls
  -- have put it there that are claimed by now.
  local function debounced(id, waits, asked_for, now)
    local known = waits and redis.call('HGET', debounce, id)
    if waits and not known then
      return nil
    end
    local began, floor = string.match(known or '', '^(%d+) (%S+)$')
    began = tonumber(began) or now
    floor = tonumber(floor or 0) > tonumber(asked_for) and floor or asked_for
    redis.call('HSET', debounce, id, string.format('%.0f ', began) .. floor)
    local due_at = now + options.debounce * 1000000
    if options.debounce_max then
      due_at = math.min(due_at, began + options.debounce_max * 1000000)
    end
    due_at = seconds(due_at)
    return tonumber(floor) > tonumber(due_at) and floor or due_at
  end

  -- When a job is due after one more call for `time`, which the caller has given or not; nil leaves it as it is.
  function due_after(id, waits, time, given, now)
    if waits and redis.call('ZSCORE', failed, id) then
      return after_failure(id, time)
    elseif options.debounce then
      return debounced(id, waits, given and time or '0', now)
    end
    return not waits and time or nil
  end
end
