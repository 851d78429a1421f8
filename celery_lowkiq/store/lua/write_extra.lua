-- Writes the sum of the extras of a shard (lib/meta.lua).
--
-- ROLE: operator
-- KEYS: meta
-- ARGV: extra known
--   known: what meta had as they were read, or '' for any
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when it has changed.
-- Cost: O(1).
if known ~= '' and (redis.call('HGET', meta, 'extra') or '0') ~= known then
  return 0
end
redis.call('HSET', meta, 'extra', extra)
return 1
