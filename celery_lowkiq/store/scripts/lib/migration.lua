-- The state of a shard in a migration: a change of its queue's number of shards while it is in use.
--
-- KEYS: meta
-- meta's `gen` is the number of the last migration that the shard has joined. Its `shards`, the route, is '<n>' before that;
-- 'closed' from its fence until it opens; '<n>><m>' until it is sealed, and '<m>' then, or 'retired' when it is none of m shards.
local function state_of(gen)
  local stored = redis.call('HMGET', meta, 'shards', 'gen')
  return stored[2] == gen and stored[1] or ''
end

-- Returns true when jobs may leave and enter the shard.
local function is_open(gen)
  return string.find(state_of(gen), '>', 1, true) ~= nil
end

-- Returns true also while the shard is closed, when it receives and forgets the transfers of a migration that was aborted.
local function has_joined(gen)
  return state_of(gen) == 'closed' or is_open(gen)
end
