-- Writes the queue's number of shards into a shard that has no job, waiting, processing or dead.
--
-- KEYS: meta due claimed dead
-- ARGV: shards reopen
--   shards: a count, or 'closed': no push passes until a count is written; reopen: '1' writes over 'closed'
-- USES:
-- Returns: 1, 0 when the shard has jobs of another count, 2 when it is closed by somebody.
-- Cost: O(1).
local current = redis.call('HGET', meta, 'shards')
if current == shards then
  return 1
elseif current == 'closed' and reopen ~= '1' then
  return 2
end
if redis.call('ZCARD', due) + redis.call('ZCARD', claimed) + redis.call('ZCARD', dead) > 0 then
  return 0
end
redis.call('HSET', meta, 'shards', shards)
return 1
