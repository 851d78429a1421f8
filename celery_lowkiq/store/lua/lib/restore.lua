-- Moves jobs back to the queue.
--
-- KEYS: jobs failed errors arrived
-- USES: payload_set waiting_index waiting policies policy_per_run policy_keep policy_due
if any_moving then
  redis.call('ZCARD', arrived)
end

-- Restores a job: adds its payloads, as the older ones, to those of the waiting job; its perform_in, retry_count and error
-- replace those of the waiting job; the more urgent priority stays. Without payloads, or when newer ones displace all of
-- them, the waiting job keeps its own, and the result is false; else it is the retry_count.
local function restore_job(id, items, perform_in, retry_count, message, priority)
  if #items == 0 then
    return false
  end
  if (priority > 0 or any_prioritized) and redis.call('HEXISTS', jobs, id) == 1 then
    priority = math.min(priority, priority_of(id))
  end
  set_add(waiting, id, items, true)
  if hooks.trim and not hooks.trim(id, items) then
    return false
  end
  index_put(id, perform_in, priority)
  if any_moving then
    redis.call('ZREM', arrived, id)
  end
  if hooks.clear then
    hooks.clear(id)
  end
  if options.per_run == 1 and tonumber(retry_count) >= 0 and failures.first_payload(id) ~= items[1][2] then
    retry_count = '-1'
  end
  if tonumber(retry_count) < 0 then
    redis.call('ZREM', failed, id)
    redis.call('HDEL', errors, id)
  else
    redis.call('ZADD', failed, retry_count, id)
    redis.call('HSET', errors, id, message)
  end
  return retry_count
end

-- Restores a claimed job that was not run to its end.
local function restore_unfinished(id, job, items, time)
  local retry_count = restore_job(id, items, time, job.retry_count, job.error, job.priority)
  if retry_count and hooks.restored then
    job.retry_count = retry_count
    hooks.restored(id, job, time)
  end
end
