-- Applies the last change of the queue's pause to a shard.
--
-- KEYS: meta
-- ARGV: pause since
-- pause: the number of the change; since: '' while the queue is not paused. The largest number wins, in whatever order
-- changes arrive. Returns whether a pause began or ended.
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
