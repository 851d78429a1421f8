-- Pauses ids: what waits of them, and what will, is held.
--
-- KEYS: paused held due ranked? classes?
-- ARGV: [id]...
-- USES: time ranks
-- FLAGS: allow-oom
-- Returns: how many were not paused.
-- Cost: O(log n) an id. Repeated: they are paused since the first time.
local ids = {unpack(ARGV, rest)}
local now, news, waiting, moved = seconds(now_us()), {}, {}, {}
local times = redis.call('ZMSCORE', due, unpack(ids))
for i, id in ipairs(ids) do
  news[2 * i - 1], news[2 * i] = now, id
  if times[i] then
    waiting[#waiting + 1] = id
    moved[#moved + 1], moved[#moved + 2] = times[i], id
  end
end
if #waiting > 0 then
  redis.call('ZREM', due, unpack(waiting))
  redis.call('ZADD', held, unpack(moved))
end
for _, id in ipairs(any_ranked and ids or {}) do
  local perform_in, rank = redis.call('ZSCORE', ranked, id), rank_of(id)
  if perform_in then
    redis.call('ZREM', ranked, id)
    redis.call('ZADD', held, perform_in, id)
    redis.call('ZADD', classes, class_score(-rank, perform_in), id)
  end
end
return redis.call('ZADD', paused, 'NX', unpack(news))
