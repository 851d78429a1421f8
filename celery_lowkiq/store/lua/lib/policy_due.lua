-- Policies that change when a job is due.
--
-- KEYS: debounce early_due
-- USES: policies time waiting_index
-- Policies debounce and debounce_max: each call moves its job to `debounce` s after it, at most `debounce_max` s after the
-- first call.
-- An entry is '<time of the first call (us)> <earliest perform_in>'. It exists while only calls have set the job's time.
if options.debounce then
  redis.call('HLEN', debounce)

  function hooks.due_after_call(id, waits, asked_for, now)
    local entry = waits and redis.call('HGET', debounce, id)
    if waits and not entry then
      return nil
    end
    local first, earliest = string.match(entry or '', '^(%d+) (%S+)$')
    first = tonumber(first) or now
    earliest = tonumber(earliest or 0) > tonumber(asked_for) and earliest or asked_for
    redis.call('HSET', debounce, id, string.format('%.0f ', first) .. earliest)
    local latest = options.debounce_max and first + options.debounce_max * 1000000 or math.huge
    local due_at = seconds(math.min(now + options.debounce * 1000000, latest))
    return tonumber(earliest) > tonumber(due_at) and earliest or due_at
  end

  -- Joins the entry of an id with that of later calls in another shard, which are due at `due_at`. Returns the perform_in of
  -- the job.
  function hooks.join_debounce(id, entry, later, due_at)
    local first, earliest = string.match(entry, '^(%d+) (%S+)$')
    local asked_for = string.match(later, '^%d+ (%S+)$') or '0'
    earliest = tonumber(earliest or 0) > tonumber(asked_for) and earliest or asked_for
    redis.call('HSET', debounce, id, (first or '0') .. ' ' .. earliest)
    if first and options.debounce_max then
      due_at = seconds(math.min(tonumber(due_at) * 1000000, first + options.debounce_max * 1000000))
    end
    return tonumber(earliest) > tonumber(due_at) and earliest or due_at
  end

  add_hook('clear', function(id)
    redis.call('HDEL', debounce, id)
  end)

  add_hook('claimed', function(ids)
    redis.call('HDEL', debounce, unpack(ids))
  end)
end

-- Policy when_pushed_after_failure = now: a call makes a job that waits for its retry due early.
-- `early_due` has the job's own perform_in, which counts again when the early run fails or does not end.
if options.due_on_push then
  redis.call('HLEN', early_due)

  function hooks.retry_after_call(id, time)
    local own = index_score(id)
    if own and tonumber(own) > tonumber(time) then
      redis.call('HSETNX', early_due, id, own)
      return time
    end
  end

  add_hook('clear', function(id)
    redis.call('HDEL', early_due, id)
  end)

  function hooks.run_time(id, perform_in, now)
    local own = redis.call('HGET', early_due, id)
    return own and tonumber(own) > now / 1000000 and own or perform_in
  end

  -- An early run that did not take place is due again.
  function hooks.return_time(job, now)
    return tonumber(job.retry_count) >= 0 and tonumber(job.perform_in) > now / 1000000 and seconds(now) or nil
  end

  function hooks.restored(id, job, time)
    if tonumber(job.retry_count) >= 0 and tonumber(job.perform_in) > tonumber(time) then
      redis.call('HSET', early_due, id, job.perform_in)
    end
  end
end
