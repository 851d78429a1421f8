-- Policy on_push_after_failure = now: a call makes a job that waits for its retry due early.
--
-- KEYS: early_due
-- USES: policies time waiting_index
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
