-- Opens a shard for the calls of a migration, after all shards of both numbers were fenced.
--
-- ROLE: operator
-- KEYS: meta lease senders
-- ARGV: shards gen score last_call pause since
--   shards: the route of the migration
--   score, last_call: the largest of all fenced shards: what is stored here from now on comes after what was stored there
--   pause, since: of the queue's last pause, as register.lua returns them
-- USES: meta.queue_pause
-- FLAGS: allow-oom
-- Returns: {route, gen} of the shard now.
-- Cost: O(1). Repeated: no effect.
local stored = redis.call('HMGET', meta, 'shards', 'gen', 'score', 'last_call')
if stored[1] == 'closed' and stored[2] == gen then
  redis.call('HSET', meta, 'shards', shards, 'gen', gen)
  for field, floor in pairs({score = score, last_call = last_call}) do
    local known = redis.call('HGET', meta, field)
    if tonumber(known or 0) < tonumber(floor) then
      redis.call('HSET', meta, field, floor)
    end
  end
  -- It may be one that was retired.
  for _, key in ipairs({meta, lease, senders}) do
    redis.call('PERSIST', key)
  end
  apply_queue_pause()
  stored[1], stored[2] = shards, gen
end
return {stored[1] or '', stored[2] or '0'}
