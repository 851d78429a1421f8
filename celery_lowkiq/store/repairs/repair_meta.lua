-- Rewrites meta of a shard: counters above all stored numbers (see gauge), the queue's number of shards, and its pause.
--
-- KEYS: meta claimed
-- ARGV: known shards pause since score back front call
--   known: the number of shards that meta had, '' for none; score: in us; back, front, call: as returned by gauge
--   pause, since: of the queue's last pause, as returned by register
-- USES: follow
-- FLAGS: allow-oom
-- Returns: 1, or 0 when meta has changed.
-- Cost: O(1). Repeated, or run concurrently: the larger numbers are kept.
if (redis.call('HGET', meta, 'shards') or '') ~= known then
  return 0
end
local function reach(field, number, sign)
  if sign * (tonumber(redis.call('HGET', meta, field)) or 0) < sign * tonumber(number) then
    redis.call('HSET', meta, field, number)
  end
end
reach('score', score, 1)
reach('back', back, 1)
reach('front', front, -1)
reach('call', call, 1)
reach('claim', redis.call('ZREVRANGE', claimed, 0, 0, 'WITHSCORES')[2] or '0', 1)
follow()
redis.call('HSET', meta, 'shards', shards)
return 1
