-- Stores a node's report. A script, for Redis's own time, and so that it also works on a full Redis.
--
-- ROLE: worker
-- KEYS: report reports
-- ARGV: owner text uptime ttl
--   uptime: s since the node started; ttl: s for which its last report is kept
-- USES: time
-- FLAGS: allow-oom
-- Returns: now, in Unix s.
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
