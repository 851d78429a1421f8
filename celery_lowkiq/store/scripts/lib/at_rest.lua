-- Dead jobs change only while their shard is in no migration: parts of an id, with or without the mark that holds it, may be in
-- two shards.
--
-- KEYS: meta
-- Returns an error reply for a shard in a migration.
local function refuse_in_migration()
  local route = redis.call('HGET', meta, 'shards')
  if route and string.find(route, '%D') then
    return redis.error_reply('SHARDS ' .. route)
  end
end
