-- Moves a node's heartbeat in many queues, and reads how many shards each has. A script, since a full Redis must accept it, so
-- that nodes can drain.
--
-- KEYS: [nodes queue]...
-- ARGV: member turn
--   member: '<owner> <lanes>'; '' for a node that takes part in no queue, and only reads
--   turn: number of the node's turn; a heartbeat that arrives late moves nothing back
-- USES:
-- FLAGS: allow-oom
-- Returns: for each queue, {member, counter, ... of all its nodes, stored number of shards or ''}.
-- Cost: O(nodes) a queue; the caller bounds the queues. Repeated: nothing changes.
local found, refused = {}, nil
for i = 1, #KEYS, 2 do
  local nodes, reply = KEYS[i], {}
  local before = member ~= '' and redis.pcall('HGET', nodes, member)
  if type(before) == 'table' then
    -- The node stays alive in its other queues.
    refused = refused or before
  elseif member ~= '' then
    if (tonumber(before or 0) or 0) < tonumber(turn) then
      redis.call('HSET', nodes, member, turn)
    end
    reply = redis.call('HGETALL', nodes)
  end
  local shards = redis.pcall('HGET', KEYS[i + 1], 'shards')
  reply[#reply + 1] = type(shards) == 'string' and shards or ''
  found[#found + 1] = reply
end
return refused or found
