-- Begins the migration of a queue to another number of shards, in the queue's own key, which has its state:
--   gen: number of the last migration; migration: its route, '<n>><m>'; phase: prepare, flip, move, seal, or idle
--   migration_began: when; migration_paused: since when it is paused
--   shards: the route that calls have: '<n>', and from flip on '<n>><m>', from seal on '<m>'
--
-- ROLE: operator
-- KEYS: queue
-- ARGV: gen shards wanted
--   gen: of the last migration, '0' without one; shards: the number as it is; wanted: the other number
-- USES: time
-- FLAGS: allow-oom
-- Returns: 1; 0 when a migration is going on, or had begun since the caller read the key.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'gen', 'shards', 'phase')
if (stored[1] or '0') ~= gen or stored[2] ~= shards or (stored[3] or 'idle') ~= 'idle' or shards == wanted then
  return 0
end
redis.call('HSET', queue, 'gen', gen + 1, 'migration', shards .. '>' .. wanted, 'migration_began', seconds(now_us()), 'phase', 'prepare')
redis.call('HDEL', queue, 'migration_paused', 'migration_aborted', 'migration_restored')
return 1
