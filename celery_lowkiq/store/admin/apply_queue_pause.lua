-- Tells a shard of the last pause of its queue.
--
-- KEYS: meta @waiting
-- ARGV: pause since channel index
--   pause, since: what pause_queue returned
-- USES: waiting_index wake queue_pause
-- FLAGS: allow-oom
-- Returns: 1, or 0 when nothing began or ended.
-- Cost: O(1). Repeated, or overtaken by a later one: nothing changes.
local changed = apply_queue_pause()
if changed and since == '' then
  wake(nil)
end
return changed and 1 or 0
