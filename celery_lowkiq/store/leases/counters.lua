-- Reads the counters of a shard.
--
-- KEYS: meta
-- ARGV:
-- USES:
-- Returns: {processed, failed}.
-- Cost: O(1).
local counted = redis.call('HMGET', meta, 'processed', 'failed')
return {tonumber(counted[1]) or 0, tonumber(counted[2]) or 0}
