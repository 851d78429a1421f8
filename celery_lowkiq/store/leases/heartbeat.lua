-- Increments a node's heartbeat in many queues. A script, since a full Redis must accept it, so that nodes can drain.
--
-- KEYS: [nodes]...
-- ARGV: member
--   member: '<owner> <lanes>'
-- USES:
-- FLAGS: allow-oom
-- Returns: for each queue, {member, counter, ...} of all its nodes.
-- Cost: O(nodes) a queue; the caller bounds the queues. Repeated: the counters grow once more, which is harmless.
for _, nodes in ipairs(KEYS) do
  redis.call('HLEN', nodes)
end
local found = {}
for i, nodes in ipairs(KEYS) do
  redis.call('HINCRBY', nodes, member, 1)
  found[i] = redis.call('HGETALL', nodes)
end
return found
