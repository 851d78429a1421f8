-- Counts of a shard.
--
-- KEYS: meta due failed claimed dead
-- ARGV:
-- USES: time due
-- Returns: {now, next_due or '', waiting, failed waiting, dead, in processing, processed, failed, merged,
--   payloads that died, smallest perform_in of all that wait or ''}.
-- Cost: O(log n + jobs in processing).
local counters = redis.call('HMGET', meta, 'processed', 'failed', 'merged', 'dead')
return {
  seconds(now_us()),
  next_due(),
  redis.call('ZCARD', due),
  redis.call('ZCARD', failed),
  redis.call('ZCARD', dead),
  redis.call('ZCARD', claimed),
  tonumber(counters[1] or 0),
  tonumber(counters[2] or 0),
  tonumber(counters[3] or 0),
  tonumber(counters[4] or 0),
  redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or '',
}
