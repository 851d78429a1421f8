-- Sums the counters of shards of a queue.
--
-- KEYS: [meta]...
-- ARGV:
-- USES:
-- Returns: {processed, failed}.
-- Cost: O(shards), which the caller bounds.
local processed, failed = 0, 0
for _, meta in ipairs(KEYS) do
  local counted = redis.call('HMGET', meta, 'processed', 'failed')
  processed, failed = processed + (tonumber(counted[1]) or 0), failed + (tonumber(counted[2]) or 0)
end
return {processed, failed}
