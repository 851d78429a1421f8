-- Deletes a transfer that its shard has received.
--
-- ROLE: operator
-- KEYS: meta outbox
-- ARGV: gen shard number
--   gen: number of the migration: the next one counts its transfers from 1 again
-- USES: migration
-- FLAGS: allow-oom
-- Returns: 1, or 0 when another transfer is there, or the shard is not in this migration.
-- Cost: O(1). Repeated: no effect.
if has_joined(gen) and string.match(redis.call('HGET', outbox, shard) or '', '^%d+') == number then
  return redis.call('HDEL', outbox, shard)
end
return 0
