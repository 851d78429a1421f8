-- Takes a queue back to the number of shards that it had before its migration, in the queue's own key. A migration that has
-- changed no shard ends; any other is replaced by the next one, with both numbers exchanged (begin_migration.lua).
--   migration_aborted: when; migration_restored: set when the key was lost, which knew whether it takes another one back
--
-- ROLE: operator
-- KEYS: queue
-- ARGV:
-- USES: time
-- FLAGS: allow-oom
-- Returns: the number of shards that it goes to now, the same as before when it was aborted already; that number with '-' when
--   the migration goes on because it may take another one back, and jobs would lose their order; '' without a migration, or when
--   all jobs have moved.
-- Cost: O(1). Repeated: no effect.
local stored = redis.call('HMGET', queue, 'phase', 'migration', 'migration_aborted', 'gen', 'migration_restored')
if not ({prepare = 1, flip = 1, move = 1})[stored[1] or ''] then
  return ''
end
local former, shards = string.match(stored[2], '^(%d+)>(%d+)$')
if stored[3] or stored[5] then
  return stored[3] and shards or '-' .. shards
end
redis.call('HDEL', queue, 'migration_paused')
if stored[1] == 'prepare' then
  redis.call('HSET', queue, 'phase', 'idle')
  return former
end
local route = shards .. '>' .. former
redis.call('HSET', queue, 'gen', stored[4] + 1, 'migration', route, 'shards', route, 'phase', 'flip')
redis.call('HSET', queue, 'migration_aborted', seconds(now_us()))
return former
