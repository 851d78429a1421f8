-- Pauses or resumes the migration of a queue, in the queue's own key: movers then bring only ids that calls wait for.
--
-- ROLE: operator
-- KEYS: queue
-- ARGV: wanted
--   wanted: '1' paused, '0' not
-- USES: time
-- FLAGS: allow-oom
-- Returns: 1 when this changed it; 0 when it was so before; -1 without a migration, or when all jobs have moved.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'phase', 'migration_paused')
if not ({prepare = 1, flip = 1, move = 1})[stored[1] or ''] then
  return -1
end
if (stored[2] and '1' or '0') == wanted then
  return 0
end
if wanted == '1' then
  redis.call('HSET', queue, 'migration_paused', seconds(now_us()))
else
  redis.call('HDEL', queue, 'migration_paused')
end
return 1
