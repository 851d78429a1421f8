-- Writes the queue's number of shards into a shard that has no job, waiting, processing or dead. The shard learns of
-- the queue's last pause in any case.
--
-- KEYS: meta @waiting! claimed dead
-- ARGV: shards reopen pause since
--   shards: a count, or 'closed': no push passes until a count is written; reopen: '1' writes over 'closed'
--   pause, since: of the queue's last pause, as register returned them
-- USES: queue_pause
-- Returns: 1, 0 when the shard has jobs of another count, 2 when it is closed by somebody.
-- Cost: O(1).
apply_queue_pause()
local current = redis.call('HGET', meta, 'shards')
if current == shards then
  return 1
elseif current == 'closed' and reopen ~= '1' then
  return 2
end
local jobs = 0
for _, index in ipairs({due, due_prioritized, due_paused, claimed, dead}) do
  jobs = jobs + redis.call('ZCARD', index)
end
if jobs > 0 then
  return 0
end
redis.call('HSET', meta, 'shards', shards)
return 1
