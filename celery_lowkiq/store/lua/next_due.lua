-- The time of the shard's next work: now when a claim is left that is not an open one of the owner, or when a key was lost,
-- which the next claim reports.
--
-- ROLE: worker
-- KEYS: meta @waiting? jobs? spill? spill_order? claimed? processing?
-- ARGV: open
--   open: numbers of the owner's open claims, or 'any'
-- USES: time processing.checks waiting.index waiting.next_due
-- Returns: {now, next_due or ''}.
-- Cost: O(log n + jobs in processing).
local now = seconds(now_us())
local known = redis.call('HMGET', meta, 'shards', 'spill_difference')
if not known[1] or inconsistent_key(known[2]) or inconsistent_index() or #unacknowledged(open) > 0 then
  return {now, now}
end
return {now, next_due()}
