-- Hides the waiting jobs of a shard from claims again, as its fence did, after the migration was paused.
--
-- ROLE: operator
-- KEYS: meta @waiting! claimed inflight
-- ARGV: gen
--   gen: number of the migration
-- USES: migration.moving migration
-- FLAGS: allow-oom
-- Returns: 1; 2 when jobs are left, for another step; 0 when the shard is not in this migration, or no job of it was claimable.
-- Cost: as a step of the fence. Repeated: no effect.
if not is_open(gen) or redis.call('HGET', meta, 'staying') ~= gen then
  return 0
end
if hold_some() then
  return 2
end
redis.call('ZUNIONSTORE', inflight, 1, claimed)
redis.call('HDEL', meta, 'staying')
return 1
