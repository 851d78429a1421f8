-- Moves a node's heartbeat in many queues, and reads how many shards each has. A script because a full Redis must accept it, so
-- that nodes can drain.
--
-- ROLE: worker
-- KEYS: [nodes queue]...
-- ARGV: member turn
--   member: '<owner> <lanes>'; '' for a node that takes part in no queue, and only reads
--   turn: number of the node's turn; a heartbeat that arrives late moves nothing back
-- USES:
-- FLAGS: allow-oom
-- Returns: {{member, counter, ...} of all nodes of a queue, ...}: equal ones once; then for each queue the place of its own
--   among them, from 0, and its route or ''. In a migration, ' <phase>' follows the route.
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

for i = 1, #KEYS, 2 do
  local nodes, all = KEYS[i], {}
  local before = member ~= '' and redis.pcall('HGET', nodes, member)
  if type(before) == 'table' then
    -- The node stays alive in its other queues.
    refused = refused or before
  elseif member ~= '' then
    if (tonumber(before or 0) or 0) < tonumber(turn) then
      redis.call('HSET', nodes, member, turn)
    end
    all = redis.call('HGETALL', nodes)
  end
  local stored = redis.pcall('HMGET', KEYS[i + 1], 'shards', 'phase')
  local phase = stored[2] and stored[2] ~= 'idle' and ' ' .. stored[2] or ''
  found[i], found[i + 1] = place_of(all), stored[1] and stored[1] .. phase or ''
end
return refused or {nodes_of, unpack(found)}
