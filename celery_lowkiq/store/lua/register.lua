-- Returns the number of shards of a queue; writes it when it is missing, or older than that of its shards. A queue that is
-- stored in another format, or in none, stays as it is.
--
-- ROLE: caller
-- KEYS: queue
-- ARGV: format shards expected gen migration pause since
--   expected: the stored count that `shards` replaces; '' for none
--   gen, migration: number and route of the last migration of the shards, '0' and '' without one; it goes on when `shards` is a
--   route, and has ended when that is a number
--   pause, since: of the queue's last pause that its shards have followed, '0' and '' without one
-- USES:
-- Returns: {format, shards, number of the last pause, start of the pause or '', phase of its migration or ''} as stored now;
--   {format or ''} when that is another one.
-- Cost: O(1).
local stored = redis.call('HMGET', queue, 'format', 'shards', 'pause', 'paused', 'phase', 'gen', 'migration')
if stored[1] ~= format and (stored[1] or stored[2]) then
  return {stored[1] or ''}
end
-- Shards have taken part already: a failover has lost that the phase after it had begun.
if stored[5] == 'prepare' and stored[6] == gen then
  stored[2], stored[5] = stored[7], 'flip'
  redis.call('HSET', queue, 'shards', stored[2], 'phase', stored[5])
end
local is_older = tonumber(stored[6] or 0) < tonumber(gen)
if not stored[2] or is_older or stored[2] == expected then
  redis.call('HSET', queue, 'format', format, 'shards', shards)
  stored[2] = shards
  if gen ~= '0' then
    -- Shards that are open already stay as they are in the phase of flip.
    stored[5] = string.find(shards, '>', 1, true) and 'flip' or 'idle'
    redis.call('HSET', queue, 'gen', gen, 'migration', migration, 'phase', stored[5], 'migration_restored', '1')
    -- They tell of a migration before.
    redis.call('HDEL', queue, 'migration_paused', 'migration_aborted')
  end
end
if tonumber(pause) > tonumber(stored[3] or 0) then
  redis.call('HSET', queue, 'pause', pause, 'paused', since)
  if since == '' then
    redis.call('HDEL', queue, 'paused')
  end
  stored[3], stored[4] = pause, since
end
return {format, stored[2], stored[3] or '0', stored[4] or '', stored[5] or ''}
