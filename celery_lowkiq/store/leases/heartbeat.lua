-- Increments a node's heartbeat in many queues. A script, since a full Redis must accept it, so that nodes can drain.
--
-- KEYS: [nodes]...
-- ARGV: member
--   member: '<owner> <lanes>'
-- USES:
-- FLAGS: allow-oom
-- Returns: for each queue, {member, counter, ...} of all its nodes.
-- Cost: O(nodes) a queue; the caller bounds the queues. Repeated: the counters grow once more, which is harmless.
local found, refused = {}, nil
for i, nodes in ipairs(KEYS) do
  local counter = redis.pcall('HINCRBY', nodes, member, 1)
  if type(counter) == 'number' then
    found[i] = redis.call('HGETALL', nodes)
  else
    -- The node stays alive in its other queues.
    refused = refused or counter
  end
end
return refused or found
