-- Closes a shard for the next migration: it refuses calls until it opens, and no claim takes what waits in it until a mover
-- has sorted that. What is in processing goes on, and is listed in `inflight`.
--
-- KEYS: meta @waiting! claimed inflight outbox
-- ARGV: gen route
--   gen: number of the migration; route: of the migration, which a closed shard keeps for a queue whose own key is lost
-- USES: format moving_index
-- FLAGS: allow-oom
-- Returns: {route, gen, last score, number of the last call} of the shard now, and 1 when its last migration was aborted: it
--   may have transfers that were not received.
-- Cost: O(1), and O(log n) a job in processing, a paused job, or one with a priority; after a migration that was aborted, also
--   a job that was sorted, or one that was not, whichever are fewer. Repeated: no effect.
local stored = redis.call('HMGET', meta, 'shards', 'gen', 'score', 'last_call', 'format')
if is_newer(stored[5]) then
  return refuse_format(stored[5])
end
-- Without a number, it was in no migration yet, or has lost its meta since.
if tonumber(stored[2] or 0) < tonumber(gen) then
  redis.call('HSET', meta, 'shards', 'closed', 'gen', gen, 'migration', route)
  hold_all()
  redis.call('ZUNIONSTORE', inflight, 1, claimed)
  stored[1], stored[2] = 'closed', gen
end
return {stored[1] or '', stored[2] or '0', stored[3] or '0', stored[4] or '0', redis.call('EXISTS', outbox)}
