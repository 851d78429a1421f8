-- Moves the counter of a lease, which tells the other nodes that its owner lives.
--
-- KEYS: lease
-- ARGV: owner epoch stopping
--   stopping: '1' from an owner that is about to end: what it leaves in processing is no crash
-- USES: owner
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the lease is another's.
-- Cost: O(1). Repeated: the counter moves once more, which is harmless.
if not is_owner() then
  return 0
end
redis.call('HSET', lease, 'stopping', stopping)
redis.call('HINCRBY', lease, 'counter', 1)
return 1
