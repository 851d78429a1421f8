-- Counts failed runs in the groups of their fingerprints, and removes the groups with the smallest ranks.
--
-- ROLE: worker
-- KEYS: failures failure_ranks
-- ARGV: most [fingerprint count description]...
--   most: maximum number of groups
-- USES: time
-- FLAGS: allow-oom
-- Returns: number of groups
-- Cost: O(log most) a fingerprint.
local HOUR, DAY = 3600, 86400
local now = now_us()
local now_s = seconds(now)

for i = rest, #ARGV, 3 do
  local fingerprint, count = ARGV[i], tonumber(ARGV[i + 1])
  local seen, first, last = string.match(redis.call('HGET', failures, fingerprint) or '', '^(%d+) ([%d.]+) ([%d.]+)$')
  count = count + (tonumber(seen) or 0)
  redis.call('HSET', failures, fingerprint, string.format('%.0f %s %s', count, first or now_s, now_s))
  -- The example is a recent one; a storm of failures does not write it each time.
  if not last or now / 1000000 - tonumber(last) > 60 then
    redis.call('HSET', failures, 'about:' .. fingerprint, ARGV[i + 2])
  end
  -- A group that failed twice as often stays an hour longer, so that many different errors do not displace it.
  local rank = now / 1000000 + HOUR * math.log(count) / math.log(2)
  redis.call('ZADD', failure_ranks, string.format('%.3f', rank), fingerprint)
end

-- Foreign groups end some at a time.
local surplus = math.min(redis.call('ZCARD', failure_ranks) - most, most)
for _, fingerprint in ipairs(surplus > 0 and redis.call('ZRANGE', failure_ranks, 0, surplus - 1) or {}) do
  redis.call('ZREM', failure_ranks, fingerprint)
  redis.call('HDEL', failures, fingerprint, 'about:' .. fingerprint)
end
redis.call('EXPIRE', failures, 90 * DAY)
redis.call('EXPIRE', failure_ranks, 90 * DAY)
return redis.call('ZCARD', failure_ranks)
