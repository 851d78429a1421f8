-- Writes what a repair has counted in a shard: the sum of the extras of its records (lib/payloads.lua), and by how many entries
-- the keys of long jobs differ, because a repair cannot fix foreign entries.
--
-- ROLE: operator
-- KEYS: meta spill? spill_order?
-- ARGV: extra known accept
--   known: the sum that meta had as they were read, or '' for any
--   accept: '1' accepts the difference of the keys of long jobs, '0' leaves it for a repair
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the sum has changed.
-- Cost: O(1). Repeated: the same, until a key changes alone.
if known ~= '' and (redis.call('HGET', meta, 'extra') or '0') ~= known then
  return 0
end
if accept == '1' then
  local difference = redis.call('HLEN', spill) - redis.call('ZCARD', spill_order)
  if difference ~= 0 then
    redis.call('HSET', meta, 'spill_difference', difference)
  else
    redis.call('HDEL', meta, 'spill_difference')
  end
end
redis.call('HSET', meta, 'extra', extra)
return 1
