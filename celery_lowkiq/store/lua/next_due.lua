-- When the shard has work next.
--
-- KEYS: due claimed
-- ARGV:
-- USES: time due
-- Returns: {now, next_due or ''}.
-- Cost: O(log n + jobs in processing).
return {seconds(now_us()), next_due()}
