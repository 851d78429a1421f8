-- Applies the last pause of a queue to a shard.
--
-- ROLE: operator
-- KEYS: meta @waiting
-- ARGV: pause since channel index
--   pause, since: as returned by pause_queue
-- USES: waiting.index waiting.wake meta.queue_pause
-- FLAGS: allow-oom
-- Returns: 1, or 0 when this changed nothing.
-- Cost: O(1). Repeated, or after a later pause: no effect.
local changed = apply_queue_pause()
if changed and since == '' then
  wake(nil)
end
return changed and 1 or 0
