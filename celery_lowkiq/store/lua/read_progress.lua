-- Counts what a migration has left to do in a shard, for people.
--
-- ROLE: reader
-- KEYS: meta @waiting! claimed inflight outbox
-- ARGV:
-- USES: migration
-- Returns: {route, waiting jobs, those of them that are to be sorted, jobs in processing, ids that were in processing at the
--   fence and have not left, pending transfers, their bytes}.
-- Cost: O(transfers).
local transfers, bytes = pending_transfers(outbox), 0
for _, field in ipairs(transfers) do
  bytes = bytes + redis.call('HSTRLEN', outbox, field)
end
local unsorted, waiting = redis.call('ZCARD', moving), 0
for _, index in ipairs({moving, due, due_prioritized, due_paused}) do
  waiting = waiting + redis.call('ZCARD', index)
end
return {
  redis.call('HGET', meta, 'shards') or '', waiting, unsorted,
  redis.call('ZCARD', claimed), redis.call('ZCARD', inflight), #transfers, bytes,
}
