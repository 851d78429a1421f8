-- Counts of a shard.
--
-- KEYS: meta due failed claimed dead
-- ARGV:
-- USES: time due
-- Returns: {now, next_due or '', waiting, failed waiting, dead, in processing, processed, failed}.
-- Cost: O(log n + jobs in processing).
local counters = redis.call('HMGET', meta, 'processed', 'failed')
return {
  seconds(now_us()),
  next_due(),
  redis.call('ZCARD', due),
  redis.call('ZCARD', failed),
  redis.call('ZCARD', dead),
  redis.call('ZCARD', claimed),
  tonumber(counters[1] or 0),
  tonumber(counters[2] or 0),
}
