-- The number of shards and the storage format of a queue, written by whoever comes first.
--
-- KEYS: queue
-- ARGV: format shards expected
--   expected: the count that `shards` may replace; '' replaces none
-- USES:
-- Returns: {format, shards, number of the last pause, since when it is paused or ''} as stored now.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'format', 'shards', 'pause', 'paused')
if not stored[1] or (stored[1] == format and stored[2] == expected) then
  redis.call('HSET', queue, 'format', format, 'shards', shards)
  stored[1], stored[2] = format, shards
end
return {stored[1], stored[2], stored[3] or '0', stored[4] or ''}
