-- Needs KEYS meta, jobs, spill, order, failed, errors, ARGV merge, and held.
local waiting = {records = jobs, spill = spill, order = order}

local function forget(id)
  redis.call('ZREM', index_of(id), id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
end

-- Puts a job (back) into the queue: its payloads are united with what waits, as the older ones; its
-- perform_in, retry_count and error replace those of the waiting job. Without payloads nothing changes.
local function put_back(id, items, perform_in, retry_count, message)
  if #items == 0 then
    return
  end
  redis.call('ZADD', index_of(id), perform_in, id)
  bag_add(waiting, id, items, true)
  if tonumber(retry_count) < 0 then
    redis.call('ZREM', failed, id)
    redis.call('HDEL', errors, id)
    return
  end
  redis.call('ZADD', failed, retry_count, id)
  redis.call('HSET', errors, id, message)
end
