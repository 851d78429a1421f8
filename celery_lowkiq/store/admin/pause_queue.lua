-- Remembers that a queue is paused, or no more. Its shards are told afterwards (follow); those that come with another
-- number of shards learn it from here (resize).
--
-- KEYS: queue
-- ARGV: wanted
--   wanted: '1' paused, '0' not
-- USES: time
-- FLAGS: allow-oom
-- Returns: {number, since or '', 1 when this changed it, number of shards}. Numbers grow, also when Redis comes back with
--   older data: what was forgotten here, shards may know.
-- Cost: O(1). Repeated: another number, with which shards that were not told before are told now.
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
