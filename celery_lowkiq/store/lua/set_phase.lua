-- Begins the next phase of a queue's migration.
--
-- ROLE: operator
-- KEYS: queue
-- ARGV: gen phase next shards
--   gen, phase: as the caller has read them; shards: of the queue from now on, see begin_migration.lua
-- USES:
-- FLAGS: allow-oom
-- Returns: 1; 0 when another mover was first.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'gen', 'phase')
if stored[1] ~= gen or stored[2] ~= phase then
  return 0
end
redis.call('HSET', queue, 'phase', next, 'shards', shards)
return 1
