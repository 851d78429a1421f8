-- When the shard has work next.
--
-- KEYS: due claimed
-- ARGV: over
--   over: no claim up to this number is open at the owner; what is still there of one has to be claimed anew
-- USES: time due
-- Returns: {now, next_due or ''}.
-- Cost: O(log n + jobs in processing).
local now = seconds(now_us())
if #redis.call('ZRANGEBYSCORE', claimed, '-inf', over, 'LIMIT', 0, 1) > 0 then
  return {now, now}
end
return {now, next_due()}
