-- Makes jobs claimable in the shard that they leave, while their migration is paused. An id of which a part has left waits, and
-- after an aborted migration one of which older jobs may be where it goes.
--
-- ROLE: operator
-- KEYS: meta @waiting! arrived outbox
-- ARGV: gen channel index [id]...
--   gen: number of the migration
-- USES: migration.moving waiting.wake migration
-- FLAGS: allow-oom
-- Returns: {id, ...} that wait; {} also when the shard is not in this migration.
-- Cost: O(log n) an id. Repeated: no effect.
if not is_open(gen) then
  return {}
end
local before, ids, waiting = first_due(), {}, {}
for _, id in ipairs({unpack(ARGV, rest)}) do
  local waits = redis.call('HEXISTS', outbox, 'part:' .. id) == 1 or redis.call('ZSCORE', arrived, id)
  table.insert(waits and waiting or ids, id)
end
-- hold.lua hides them again before the shard can be finished.
redis.call('HSET', meta, 'staying', gen)
release_moving(ids)
wake(before)
return waiting
