-- Pauses or resumes a queue, in its own key. apply_queue_pause applies that to its shards, and set_shard_count to
-- shards that are added later.
--
-- ROLE: operator
-- KEYS: queue
-- ARGV: wanted
--   wanted: '1' paused, '0' not
-- USES: time
-- FLAGS: allow-oom
-- Returns: {number, since or '', 1 when this changed it, number of shards}. The number grows, even if Redis returns with
--   older data while a shard has a later number.
-- Cost: O(1). Repeated: a new number, so that it reaches shards that missed the first one.
local known = redis.call('HMGET', queue, 'pause', 'paused', 'shards')
local now = now_us()
local pause = string.format('%.0f', math.max((tonumber(known[1]) or 0) + 1, now))
local since = wanted == '1' and (known[2] or seconds(now)) or ''
redis.call('HSET', queue, 'pause', pause)
if since == '' then
  redis.call('HDEL', queue, 'paused')
else
  redis.call('HSET', queue, 'paused', since)
end
return {pause, since, (since == '') == not known[2] and 0 or 1, known[3] or '0'}
