-- Makes jobs claimable that a mover has found to be complete in this shard, at their own times.
--
-- KEYS: meta @waiting!
-- ARGV: gen channel index [id]...
--   gen: number of the migration; also after the shard was sealed
-- USES: moving_index wake migration
-- FLAGS: allow-oom
-- Returns: 1; 0 when the shard is not in this migration.
-- Cost: O(log n) an id. Repeated: no effect.
local state = state_of(gen)
if state == '' or state == 'closed' then
  return 0
end
local before = first_due()
release_moving({unpack(ARGV, rest)})
wake(before)
return 1
