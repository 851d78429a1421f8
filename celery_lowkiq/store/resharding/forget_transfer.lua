-- Deletes a transfer that its shard has received.
--
-- KEYS: outbox
-- ARGV: shard number
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when another transfer is there.
-- Cost: O(1). Repeated: no effect.
if string.match(redis.call('HGET', outbox, shard) or '', '^%d+') == number then
  return redis.call('HDEL', outbox, shard)
end
return 0
