-- Opens a tracker. Repeated: it stays as it is.
--
-- ROLE: caller
-- KEYS: tracker
-- ARGV: name ttl
--   ttl: s for which it is kept after its last change
-- USES: time
-- Returns: when it was opened, in Unix s.
-- Cost: O(1).
local now_s = seconds(now_us())
if redis.call('HSETNX', tracker, 'opened', now_s) == 1 then
  redis.call('HSET', tracker, 'name', name, 'ttl', ttl, 'closed', '0', 'cancelled', '0', 'added', '0', 'latest', '0',
    'enqueued', '0', 'working', '0', 'finished', '0', 'failed', '0', 'error', '0')
  redis.call('EXPIRE', tracker, ttl)
end
return redis.call('HGET', tracker, 'opened')
