-- Policies max_length and when_full: what happens to a call for which the shard has no place.
--
-- KEYS: meta jobs tries processing
-- USES: policies policy_drop_stale waiting waiting_index orphans
local evicted
if options.max_length then
  evicted = {}
  local EVICTION_CANDIDATES = 16
  local length = redis.call('ZCARD', due) + redis.call('ZCARD', due_prioritized)
  if any_paused then
    length = length + redis.call('ZCARD', due_paused)
  end
  if any_moving then
    length = length + redis.call('ZCARD', moving)
  end
  if options.when_full == 'drop_oldest' then
    redis.call('HLEN', tries)
  end

  -- Counts ids of the jobs up to last_job that have no waiting job and at least one call that is not stale.
  local function new_ids(last_job, now_s)
    local new, seen = 0, {}
    for i = rest, last_job, 4 do
      local id, score = ARGV[i], ARGV[i + 2]
      local done_score = not seen[id] and hooks.done_score and hooks.done_score(id)
      if not seen[id] and not (done_score and tonumber(string.match(score, '^~?(.+)') or now_s) < done_score) then
        new = new + 1 - redis.call('HEXISTS', jobs, id)
        seen[id] = true
      end
    end
    return new
  end

  if options.when_full == 'refuse' then
    function hooks.refusal(last_job, now_s)
      local new = new_ids(last_job, now_s)
      if new > 0 and length + new > options.max_length then
        return redis.error_reply('FULL ' .. length .. ' ' .. options.max_length)
      end
    end
  end

  local function any_recorded(items)
    for _, item in ipairs(items) do
      if item[4] ~= '' then
        return true
      end
    end
  end

  -- Drops the job with the smallest perform_in among the candidates that are not spilled, those of priority 0 and those
  -- that are being moved last.
  local function evict()
    local ids = any_prioritized and redis.call('ZRANGE', due_prioritized, 0, EVICTION_CANDIDATES - 1) or {}
    for _, index in ipairs({due, any_moving and moving or nil}) do
      for _, id in ipairs(redis.call('ZRANGE', index, 0, EVICTION_CANDIDATES - 1)) do
        ids[#ids + 1] = id
      end
    end
    for _, id in ipairs(ids) do
      local record = redis.call('HGET', jobs, id)
      if record ~= SPILLED then
        local items = unpack_items(record or '')
        redis.call('HDEL', jobs, id)
        add_extra(waiting, record and 1 - #items or 0)
        remove_waiting(id)
        redis.call('HDEL', tries, id)
        redis.call('HINCRBY', meta, 'dropped', #items)
        if any_recorded(items) then
          add_orphan(evicted, id, redis.call('HGET', meta, 'last_call'))
        end
        return true
      end
    end
  end

  add_hook('drops_call', function(id, score, flag, waits)
    if waits then
      return false
    elseif options.when_full == 'refuse' or length < options.max_length then
      length = length + 1
      return false
    end
    return options.when_full ~= 'drop_oldest' or not evict()
  end)
end
