-- Records by how many entries the keys of long jobs differ after a repair: a repair cannot fix foreign entries.
--
-- ROLE: operator
-- KEYS: meta spill spill_order
-- ARGV:
-- USES:
-- FLAGS: allow-oom
-- Returns: the difference.
-- Cost: O(1). Repeated: the same, until a key changes alone.
local apart = redis.call('HLEN', spill) - redis.call('ZCARD', spill_order)
if apart ~= 0 then
  redis.call('HSET', meta, 'spill_difference', apart)
else
  redis.call('HDEL', meta, 'spill_difference')
end
return apart
