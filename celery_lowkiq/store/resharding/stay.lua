-- Makes jobs claimable in the shard that they leave, while their migration is paused. An id of which a part has left waits.
--
-- KEYS: meta @waiting! outbox
-- ARGV: gen channel index [id]...
--   gen: number of the migration
-- USES: moving_index wake migration
-- FLAGS: allow-oom
-- Returns: {id, ...} of which a part has left; {} also when the shard is not in this migration.
-- Cost: O(log n) an id. Repeated: no effect.
if not is_open(gen) then
  return {}
end
local before, ids, parted = first_due(), {}, {}
for _, id in ipairs({unpack(ARGV, rest)}) do
  table.insert(redis.call('HEXISTS', outbox, 'part:' .. id) == 1 and parted or ids, id)
end
-- hold.lua hides them again before the shard can be finished.
redis.call('HSET', meta, 'staying', gen)
release_moving(ids)
wake(before)
return parted
