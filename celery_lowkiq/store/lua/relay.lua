-- Makes jobs claimable that a mover has found to be complete in this shard, at their own times.
--
-- ROLE: operator
-- KEYS: meta @waiting! inflight arrived
-- ARGV: gen channel index [id]...
--   gen: number of the migration; also after the shard was sealed
-- USES: migration.moving waiting.wake migration
-- FLAGS: allow-oom
-- Returns: 1; 0 when the shard is not in this migration.
-- Cost: O(log n) an id. Repeated: no effect.
local state = state_of(gen)
if state == '' or state == 'closed' then
  return 0
end
local before = first_due()
local ids = {unpack(ARGV, rest)}
if #ids > 0 then
  release_moving(ids)
  redis.call('ZREM', inflight, unpack(ids))
  redis.call('ZREM', arrived, unpack(ids))
end
wake(before)
return 1
