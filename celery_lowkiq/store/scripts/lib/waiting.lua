-- Needs KEYS meta, jobs, spill, order, failed, errors, ARGV merge, and held, policy, keep.
local waiting = {records = jobs, spill = spill, order = order}

local function forget(id)
  lift(id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
  forget_policy(id)
end

-- Puts a job (back) into the queue: its payloads are united with what waits, as the older ones; its
-- perform_in, retry_count and error replace those of the waiting job; of two priorities the more urgent one stays. Without
-- payloads, or when all of them are dropped for newer ones, the waiting job's stay. Returns whether they were replaced.
local function put_back(id, items, perform_in, retry_count, message, rank)
  if #items == 0 then
    return false
  end
  if (rank > 0 or any_ranked) and redis.call('HEXISTS', jobs, id) == 1 then
    rank = math.min(rank, rank_of(id))
  end
  bag_add(waiting, id, items, true)
  if asked.keep and not any_kept(waiting, id, items) then
    return false
  end
  lay(id, perform_in, rank)
  forget_policy(id)
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
local function put_unfinished(id, job, items, time)
  local own, was_early = job.perform_in, asked.now and tonumber(job.retry_count) >= 0
  if put_back(id, items, time, job.retry_count, job.error, job.rank) and was_early and tonumber(own) > tonumber(time) then
    redis.call('HSET', early, id, own)
  end
end
