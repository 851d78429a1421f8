-- Moves a node's heartbeat in many queues. A script, since a full Redis must accept it, so that nodes can drain.
--
-- KEYS: [nodes]...
-- ARGV: member turn
--   member: '<owner> <lanes>'
--   turn: number of the node's turn; a heartbeat that arrives late moves nothing back
-- USES:
-- FLAGS: allow-oom
-- Returns: {{member, counter, ...} of all nodes of a queue, ...}: equal ones once; then for each queue the place of its own
--   among them, from 0.
-- Cost: O(nodes) a queue; the caller bounds the queues. Repeated: nothing changes.
local nodes_of, places, found, refused = {}, {}, {}, nil

-- The place of a queue's nodes among the different ones.
local function place_of(all)
  local parts = {}
  for i, value in ipairs(all) do
    parts[i] = #value .. ' ' .. value
  end
  local text = table.concat(parts)
  if not places[text] then
    places[text] = #nodes_of
    nodes_of[#nodes_of + 1] = all
  end
  return places[text]
end

for i, nodes in ipairs(KEYS) do
  local before = redis.pcall('HGET', nodes, member)
  if type(before) == 'table' then
    -- The node stays alive in its other queues.
    refused = refused or before
  else
    if (tonumber(before or 0) or 0) < tonumber(turn) then
      redis.call('HSET', nodes, member, turn)
    end
    found[i] = place_of(redis.call('HGETALL', nodes))
  end
end
return refused or {nodes_of, unpack(found)}
