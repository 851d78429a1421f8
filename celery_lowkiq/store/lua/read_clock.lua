-- Reads the clock of the master that has a queue's own keys.
--
-- ROLE: worker
-- KEYS: history
-- ARGV:
-- USES: time
-- Returns: now, in Unix s.
-- Cost: O(1).
return seconds(now_us())
