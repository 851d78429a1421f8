-- Closes a shard for the next migration: it refuses calls until it opens, and no claim takes what waits in it until a mover
-- has sorted that. What is in processing goes on, and is listed in `inflight`. A shard with many jobs takes several steps; until
-- the last one, claims take what is left.
--
-- ROLE: operator
-- KEYS: meta @waiting! claimed inflight outbox
-- ARGV: gen route
--   gen: number of the migration; route: of the migration, which a closed shard keeps for a queue whose own key is lost
-- USES: meta.begin_format migration.moving
-- FLAGS: allow-oom
-- Returns: {route, gen, last score, number of the last call} of the shard now, 1 when its last migration was aborted: it may
--   have transfers that were not received; and 1 when another step is needed, else 0.
-- Cost: O(log n) for each of at most 1,000 jobs, and O(1) for many in `due`; the last step also O(log n) a job in processing.
--   Repeated: no effect after the last step.
local stored = redis.call('HMGET', meta, 'shards', 'gen', 'score', 'last_call', 'format', 'fencing')
if stored[1] and is_foreign(stored[5]) then
  return refuse_format(stored[5])
end
-- Without a number, it was in no migration yet, or has lost its meta since.
if tonumber(stored[2] or 0) < tonumber(gen) then
  redis.call('HSET', meta, 'shards', 'closed', 'gen', gen, 'migration', route, 'fencing', gen)
  begin_format()
  if redis.call('EXISTS', due, due_prioritized, due_paused, moving) == 0 then
    redis.call('HSET', meta, 'extra', 0)
  end
  stored[1], stored[2], stored[6] = 'closed', gen, gen
end
local is_fencing = stored[6] == gen
local is_left = is_fencing and hold_some()
if is_fencing and not is_left then
  redis.call('ZUNIONSTORE', inflight, 1, claimed)
  redis.call('HDEL', meta, 'fencing')
end
return {stored[1] or '', stored[2] or '0', stored[3] or '0', stored[4] or '0', redis.call('EXISTS', outbox), is_left and 1 or 0}
