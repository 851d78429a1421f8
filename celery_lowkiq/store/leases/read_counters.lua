-- Reads the counters of shards of a queue.
--
-- KEYS: [meta]...
-- ARGV:
-- USES:
-- Returns: {failed in all shards, processed in each shard...}.
-- Cost: O(shards), which the caller bounds.
local counters = {0}
for _, meta in ipairs(KEYS) do
  local counted = redis.call('HMGET', meta, 'processed', 'failed')
  counters[1] = counters[1] + (tonumber(counted[2]) or 0)
  counters[#counters + 1] = tonumber(counted[1]) or 0
end
return counters
