-- Puts jobs back among the waiting ones, and forgets waiting jobs.
--
-- KEYS: meta jobs spill spill_order failed errors
-- ARGV: merge
-- USES: payload_set waiting_index policy keep_highest
local waiting = {records = jobs, spill = spill, spill_order = spill_order}

local function remove_waiting(id)
  index_remove(id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
  clear_policy_state(id)
end

-- Puts a job (back) into the queue: its payloads are united with what waits, as the older ones; its
-- perform_in, retry_count and error replace those of the waiting job; of two priorities the more urgent one stays. Without
-- payloads, or when all of them are dropped for newer ones, the waiting job's stay. Returns whether they were replaced.
local function restore_job(id, items, perform_in, retry_count, message, priority)
  if #items == 0 then
    return false
  end
  if (priority > 0 or any_prioritized) and redis.call('HEXISTS', jobs, id) == 1 then
    priority = math.min(priority, priority_of(id))
  end
  set_add(waiting, id, items, true)
  if options.keep and not any_kept(waiting, id, items) then
    return false
  end
  index_put(id, perform_in, priority)
  clear_policy_state(id)
  if tonumber(retry_count) < 0 then
    redis.call('ZREM', failed, id)
    redis.call('HDEL', errors, id)
  else
    redis.call('ZADD', failed, retry_count, id)
    redis.call('HSET', errors, id, message)
  end
  return true
end

-- Puts a job back that was not run to its end. A run before the job's own time, which a call asked for, is made up for.
local function restore_unfinished(id, job, items, time)
  local own, was_early = job.perform_in, options.due_on_push and tonumber(job.retry_count) >= 0
  if restore_job(id, items, time, job.retry_count, job.error, job.priority) and was_early and tonumber(own) > tonumber(time) then
    redis.call('HSET', early_due, id, own)
  end
end
