-- When the shard has work next: now, when something of a claim is left that the owner has not in hand.
--
-- KEYS: meta due ranked? classes? paused? claimed
-- ARGV: open
--   open: the numbers of the claims that the owner has in hand, or 'any'
-- USES: time stray ranks due
-- Returns: {now, next_due or ''}.
-- Cost: O(log n + jobs in processing).
local now = seconds(now_us())
if #strays() > 0 then
  return {now, now}
end
return {now, next_due()}
