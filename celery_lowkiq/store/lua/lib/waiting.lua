-- Needs KEYS meta, jobs, spill, order, failed, errors, ARGV merge, and held, policy, keep.
local waiting = {records = jobs, spill = spill, order = order}

local function forget(id)
  redis.call('ZREM', index_of(id), id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
  forget_policy(id)
end

-- Whether any of the items is not among those that were dropped.
local function survives(items, gone)
  for _, item in ipairs(items) do
    if not gone[item[2]] then
      return true
    end
  end
end

-- Puts a job (back) into the queue: its payloads are united with what waits, as the older ones; its
-- perform_in, retry_count and error replace those of the waiting job. Without payloads, or when all of them were dropped
-- for newer ones, those stay.
local function put_back(id, items, perform_in, retry_count, message)
  if #items == 0 then
    return
  end
  bag_add(waiting, id, items, true)
  if not survives(items, trim(waiting, id)) then
    return
  end
  redis.call('ZADD', index_of(id), perform_in, id)
  forget_policy(id)
  if tonumber(retry_count) < 0 then
    redis.call('ZREM', failed, id)
    redis.call('HDEL', errors, id)
    return
  end
  redis.call('ZADD', failed, retry_count, id)
  redis.call('HSET', errors, id, message)
end
