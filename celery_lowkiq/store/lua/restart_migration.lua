-- Begins the last migration of a queue once more, in the queue's own key, under the next number: a failover has lost what the
-- migration did in a shard. What is sorted stays where it is (begin_migration.lua).
--
-- ROLE: caller
-- KEYS: queue
-- ARGV: gen phase
--   gen, phase: as the caller has read them
-- USES:
-- FLAGS: allow-oom
-- Returns: 1; 0 when its phase or another migration has begun since.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'gen', 'phase', 'migration')
if stored[1] ~= gen or stored[2] ~= phase then
  return 0
end
redis.call('HSET', queue, 'gen', gen + 1, 'phase', 'flip', 'shards', stored[3])
redis.call('HDEL', queue, 'migration_paused')
return 1
