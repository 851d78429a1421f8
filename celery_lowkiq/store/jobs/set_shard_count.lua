-- Writes the queue's number of shards into a shard without waiting, claimed or dead jobs; and the queue's last pause into any
-- shard.
--
-- KEYS: meta @waiting! claimed dead
-- ARGV: shards reopen pause since
--   shards: a count, or 'closed', which refuses pushes until a count is written; reopen: '1' replaces 'closed'
--   pause, since: of the queue's last pause, as register.lua returns them
-- USES: queue_pause
-- Returns: 1; 0 when the shard has jobs of another count; 2 when another caller has closed it, and when it is, or will be, in
--   a migration: only movers open it then (open.lua).
-- Cost: O(1).
apply_queue_pause()
local current = redis.call('HGET', meta, 'shards')
if current == shards then
  return 1
elseif current == 'closed' and reopen ~= '1' or string.find(shards .. ' ' .. (current or ''), '>', 1, true) then
  return 2
end
local jobs = 0
for _, index in ipairs({due, due_prioritized, due_paused, moving, claimed, dead}) do
  jobs = jobs + redis.call('ZCARD', index)
end
if jobs > 0 then
  return 0
end
redis.call('HSET', meta, 'shards', shards)
return 1
