-- Moves the counter of a lease, which tells the other nodes that its owner lives.
--
-- KEYS: lease meta?
-- ARGV: owner epoch stopping server
--   stopping: '1' from an owner that is about to end: what it leaves in processing is no crash
--   server: of an owner that was silent for too long, the server that gave the lease: on another one somebody may
--     have had the shard since, and that write may be lost; '' from others
-- USES: time server owner
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the lease is another's.
-- Cost: O(1), and INFO where a server is named. Repeated: the counter moves once more, which is harmless.
if server ~= '' and server ~= server_name() or not is_owner() then
  return 0
end
redis.call('HSET', lease, 'stopping', stopping)
redis.call('HINCRBY', lease, 'counter', 1)
return 1
