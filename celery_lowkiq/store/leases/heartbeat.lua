-- Increments a node's heartbeat in a queue. A script, since a full Redis must accept it, so that nodes can drain.
--
-- KEYS: nodes
-- ARGV: member
--   member: '<owner> <lanes>'
-- USES:
-- FLAGS: allow-oom
-- Returns: {member, counter, ...} of all nodes.
-- Cost: O(nodes). Repeated: the counter grows once more, which is harmless.
redis.call('HINCRBY', nodes, member, 1)
return redis.call('HGETALL', nodes)
