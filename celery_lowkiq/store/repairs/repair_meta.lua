-- Writes what meta must know of a shard, above all that is stored there (see gauge), with the queue's number of shards, and
-- its pause.
--
-- KEYS: meta claimed
-- ARGV: known shards pause since score back front call
--   known: the number of shards that the shard said it has, '' for none; score: in us; the others as gauge found them
--   pause, since: of the queue's last pause, as register returned them
-- USES: follow
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the shard says something else by now.
-- Cost: O(1). Repeated, or done by two: the larger numbers stay.
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
