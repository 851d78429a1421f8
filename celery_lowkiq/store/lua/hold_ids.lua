-- Lets the dead payloads of ids hold them, or ends that: the dead payloads stay in the morgue, and the ids go on.
--
-- ROLE: operator
-- KEYS: @waiting! dead
-- ARGV: wanted channel index [id]...
--   wanted: '1' holds ids that have dead payloads, '0' ends it
-- USES: time waiting.index waiting.wake waiting.holds
-- FLAGS: allow-oom
-- Returns: the number of ids that this changed.
-- Cost: O(log n) per id. Repeated: no effect; an id is held since the first time.
local before, now, changed = first_due(), seconds(now_us()), 0
any_paused = any_paused or wanted == '1'
for i = rest, #ARGV do
  local id = ARGV[i]
  local is_changed
  if wanted == '1' then
    is_changed = redis.call('ZSCORE', dead, id) and begin_hold(id, now)
  else
    is_changed = end_hold(id)
  end
  changed = changed + (is_changed and 1 or 0)
end
wake(before)
return changed
