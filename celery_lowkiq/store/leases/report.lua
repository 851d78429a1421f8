-- Writes what a node says of itself. A script, for Redis's own time, and since a full Redis is worth a look, too.
--
-- KEYS: report reports
-- ARGV: owner text uptime ttl
--   uptime: s since the node started; ttl: s for which its last report can be read
-- USES: time
-- FLAGS: allow-oom
-- Returns: now.
-- Cost: O(log nodes).
local now = now_us()
local now_s = seconds(now)
redis.call('HSETNX', report, 'started', seconds(now - math.floor(tonumber(uptime) * 1000000)))
redis.call('HSET', report, 'at', now_s, 'text', text)
redis.call('EXPIRE', report, ttl)
redis.call('ZADD', reports, now_s, owner)
redis.call('ZREMRANGEBYSCORE', reports, '-inf', seconds(now - tonumber(ttl) * 1000000))
redis.call('EXPIRE', reports, ttl)
return now_s
