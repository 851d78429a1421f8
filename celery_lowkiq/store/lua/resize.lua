-- Writes the queue's number of shards into a shard that has no job, waiting, processing or dead.
--
-- KEYS: meta due claimed dead
-- ARGV: shards
--   shards: a count, or 'closed': no push passes until a count is written
-- USES:
-- Returns: 1, or 0 when the shard has jobs of another count.
-- Cost: O(1).
if redis.call('HGET', meta, 'shards') == shards then
  return 1
end
if redis.call('ZCARD', due) + redis.call('ZCARD', claimed) + redis.call('ZCARD', dead) > 0 then
  return 0
end
redis.call('HSET', meta, 'shards', shards)
return 1
