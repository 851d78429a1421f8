-- Writes the queue's number of shards into a new shard, and the queue's last pause into any shard. Only a migration changes a
-- number that is there.
--
-- ROLE: caller
-- KEYS: meta @waiting! claimed dead
-- ARGV: shards pause since
--   pause, since: of the queue's last pause, as register.lua returns them
-- USES: meta.queue_pause meta.begin_format
-- Returns: 1; 0 when the shard has another count, or jobs and none, and in a migration.
-- Cost: O(1).
local stored = redis.call('HMGET', meta, 'shards', 'format')
local current = stored[1]
if current and is_foreign(stored[2]) then
  return refuse_format(stored[2])
end
apply_queue_pause()
if current == shards then
  return 1
end
local jobs = (current or string.find(shards, '>', 1, true)) and 1 or 0
for _, index in ipairs({due, due_prioritized, due_paused, moving, claimed, dead}) do
  jobs = jobs + redis.call('ZCARD', index)
end
if jobs > 0 then
  return 0
end
begin_format()
redis.call('HSET', meta, 'shards', shards, 'extra', 0)
return 1
