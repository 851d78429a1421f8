-- Renews a lease: increments its counter, by which other nodes see that the owner is alive.
--
-- KEYS: lease meta?
-- ARGV: owner epoch stopping server turn
--   stopping: '1' from an owner that is shutting down: jobs that it leaves in processing count no crash
--   server: after a gap in renewals, the server that gave the lease: on another server, a lost write may have given
--     the shard to another node since; '' without a gap
--   turn: number of the owner's turn
-- USES: time server owner turn
-- FLAGS: allow-oom
-- Returns: 1, or 0 when another node has the lease.
-- Cost: O(1), and INFO when a server is given. Repeated: the counter grows once more, which is harmless.
if server ~= '' and server ~= server_name() or not is_owner() then
  return 0
end
redis.call('HSET', lease, 'stopping', stopping)
redis.call('HINCRBY', lease, 'counter', 1)
mark_turn(lease, redis.call('HGET', lease, 'turn'), epoch, turn)
return 1
