-- Reads what a mover has to do in a shard.
--
-- ROLE: reader
-- KEYS: lease meta moving inflight outbox
-- ARGV: limit
--   limit: maximum number of ids to return that wait to be sorted: those that are due first
-- USES: migration migration.given_elsewhere
-- Returns: {route, gen, {id, ...} of these, their whole number, {id, ...} that were in processing at the fence and have not
--   left, {shard, ...} to which transfers are pending, counts processed, failed, merged, dead and dropped in all, 1 when jobs
--   that leave may be claimed here: stay.lua, the owner that may run what the shard does not know: lib/migration.lua}.
-- Cost: O(limit + jobs in processing + transfers), and INFO.
local stored = redis.call('HMGET', meta, 'shards', 'gen', 'processed', 'failed', 'merged', 'dead', 'dropped', 'staying')
local total = 0
for i = 3, 7 do
  total = total + tonumber(stored[i] or 0)
end
local ids = redis.call('ZRANGE', moving, 0, limit - 1)
return {
  stored[1] or '', stored[2] or '0', ids, redis.call('ZCARD', moving), redis.call('ZRANGE', inflight, 0, -1), pending_transfers(outbox), total,
  stored[8] == stored[2] and 1 or 0, given_elsewhere(),
}
