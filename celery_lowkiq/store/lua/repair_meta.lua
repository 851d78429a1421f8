-- Rewrites meta of a shard: counters above all stored numbers (see largest_numbers), the queue's number of shards, and
-- its pause.
--
-- ROLE: operator
-- KEYS: meta claimed
-- ARGV: known shards pause since score back front call
--   known: the number of shards that meta had, '' for none; score: in us; back, front, call: as returned by
--   largest_numbers
--   pause, since: of the queue's last pause, as returned by register
-- USES: meta.queue_pause meta.begin_format
-- FLAGS: allow-oom
-- Returns: 1, or 0 when meta has changed.
-- Cost: O(1). Repeated, or run concurrently: the larger numbers are kept.
if (redis.call('HGET', meta, 'shards') or '') ~= known then
  return 0
end
local function raise_to(field, number, sign)
  if sign * (tonumber(redis.call('HGET', meta, field)) or 0) < sign * tonumber(number) then
    redis.call('HSET', meta, field, number)
  end
end
raise_to('score', score, 1)
raise_to('last_arrival', back, 1)
raise_to('first_arrival', front, -1)
raise_to('last_call', call, 1)
raise_to('claim', redis.call('ZREVRANGE', claimed, 0, 0, 'WITHSCORES')[2] or '0', 1)
apply_queue_pause()
if known == '' then
  begin_format()
end
redis.call('HSET', meta, 'shards', shards)
return 1
