-- Moves a node's heartbeat in many queues. A script, since a full Redis must accept it, so that nodes can drain.
--
-- KEYS: [nodes]...
-- ARGV: member turn
--   member: '<owner> <lanes>'
--   turn: number of the node's turn; a heartbeat that arrives late moves nothing back
-- USES:
-- FLAGS: allow-oom
-- Returns: for each queue, {member, counter, ...} of all its nodes.
-- Cost: O(nodes) a queue; the caller bounds the queues. Repeated: nothing changes.
local found, refused = {}, nil
for i, nodes in ipairs(KEYS) do
  local before = redis.pcall('HGET', nodes, member)
  if type(before) == 'table' then
    -- The node stays alive in its other queues.
    refused = refused or before
  else
    if (tonumber(before or 0) or 0) < tonumber(turn) then
      redis.call('HSET', nodes, member, turn)
    end
    found[i] = redis.call('HGETALL', nodes)
  end
end
return refused or found
