-- When the shard has work next: now, when something of a claim is left that the owner has not in hand, or when the next
-- claim is to find that a key of the shard was lost.
--
-- KEYS: meta @waiting? jobs? spill? spill_order? claimed? processing?
-- ARGV: open
--   open: the numbers of the claims that the owner has in hand, or 'any'
-- USES: time key_consistency unacknowledged waiting_index next_due
-- Returns: {now, next_due or ''}.
-- Cost: O(log n + jobs in processing).
local now = seconds(now_us())
local known = redis.call('HMGET', meta, 'shards', 'spill_difference')
if not known[1] or inconsistent_key(known[2]) or #unacknowledged() > 0 then
  return {now, now}
end
return {now, next_due()}
