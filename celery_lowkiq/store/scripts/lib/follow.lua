-- Needs KEY meta and ARGV pause, since: number and beginning ('' while the queue is not paused) of its last change.
-- A shard follows the largest number that it was told, in whatever order that happens. Returns whether anything began
-- or ended.
local function follow()
  if (tonumber(redis.call('HGET', meta, 'queue_pause')) or 0) >= tonumber(pause) then
    return false
  end
  redis.call('HSET', meta, 'queue_pause', pause)
  if since == '' then
    return redis.call('HDEL', meta, 'queue_paused') == 1
  end
  return redis.call('HSET', meta, 'queue_paused', since) == 1
end
