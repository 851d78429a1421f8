-- Pauses a shard: claims take nothing of it until it is resumed. What runs goes on, what comes waits.
--
-- KEYS: meta
-- ARGV:
-- USES: time
-- FLAGS: allow-oom
-- Returns: 1, or 0 when it was paused.
-- Cost: O(1). Repeated: it is paused since the first time.
if redis.call('HEXISTS', meta, 'paused') == 1 then
  return 0
end
return redis.call('HSET', meta, 'paused', seconds(now_us()))
