-- Applies the last change of the queue's pause to a shard.
--
-- KEYS: meta
-- ARGV: pause since
-- pause: number of the change; changes may arrive in any order, and the largest number is valid. since: '' when the queue is
-- not paused. Returns true when a pause has begun or ended.
local function apply_queue_pause()
  if (tonumber(redis.call('HGET', meta, 'queue_pause')) or 0) >= tonumber(pause) then
    return false
  end
  redis.call('HSET', meta, 'queue_pause', pause)
  if since == '' then
    return redis.call('HDEL', meta, 'queue_paused') == 1
  end
  return redis.call('HSET', meta, 'queue_paused', since) == 1
end
