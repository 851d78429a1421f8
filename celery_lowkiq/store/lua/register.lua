-- The number of shards and the storage format of a queue, written by whoever comes first.
--
-- KEYS: queue
-- ARGV: format shards expected
--   expected: the count that `shards` may replace; '' replaces none
-- USES:
-- Returns: {format, shards} as stored now.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'format', 'shards')
if not stored[1] or (stored[1] == format and stored[2] == expected) then
  redis.call('HSET', queue, 'format', format, 'shards', shards)
  return {format, shards}
end
return stored
