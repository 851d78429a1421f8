-- Ends a migration in a shard: one of the new number has that as its route from now on. One that the new number does not have
-- is retired; what it knows of senders stays for an hour, so that their repeated pushes are recognised.
--
-- ROLE: operator
-- KEYS: meta lease senders moving inflight arrived outbox
-- ARGV: shards gen sealed
--   shards: the route of the migration; sealed: the new number, or 'retired'
-- USES: migration
-- FLAGS: allow-oom
-- Returns: {1 when the shard is sealed, number of jobs that are to be relayed}.
-- Cost: O(transfers). Repeated: no effect.
local RETENTION = 3600

if state_of(gen) == shards then
  redis.call('HSET', meta, 'shards', sealed)
  redis.call('DEL', inflight, arrived, outbox)
  if sealed == 'retired' then
    redis.call('HDEL', meta, 'paused')
    for _, key in ipairs({meta, lease, senders}) do
      redis.call('EXPIRE', key, RETENTION)
    end
  end
end
return {state_of(gen) == sealed and 1 or 0, redis.call('ZCARD', moving)}
