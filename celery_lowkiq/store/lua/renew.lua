-- Renews a lease: increments its counter, by which other nodes see that the owner is alive.
--
-- ROLE: worker
-- KEYS: lease meta?
-- ARGV: owner epoch stopping turn
--   stopping: '1' from an owner that is shutting down: jobs that it leaves in processing count no crash
--   turn: number of the owner's turn
-- USES: time lease.server lease.owner lease.turn
-- FLAGS: allow-oom
-- Returns: the name of this server, or 0 when another node has the lease.
-- Cost: O(1), and INFO. Repeated: the counter grows once more, which is harmless.
if not is_owner() then
  return 0
end
redis.call('HSET', lease, 'stopping', stopping)
redis.call('HINCRBY', lease, 'counter', 1)
mark_turn(lease, redis.call('HGET', lease, 'turn'), epoch, turn)
return server_name()
