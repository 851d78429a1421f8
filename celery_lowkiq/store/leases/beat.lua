-- Moves a node's heartbeat in a queue. A script, since a full Redis must let nodes meet to be drained.
--
-- KEYS: nodes
-- ARGV: member
--   member: '<owner> <lanes>'
-- USES:
-- FLAGS: allow-oom
-- Returns: {member, counter, ...} of all nodes.
-- Cost: O(nodes). Repeated: the counter moves once more, which is harmless.
redis.call('HINCRBY', nodes, member, 1)
return redis.call('HGETALL', nodes)
