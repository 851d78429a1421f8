-- Pauses ids, or ends their pause: the waiting job of a paused id lies in due_paused, whether it came before or comes
-- later. A resumed one is due at its own time, unless a death holds the id.
--
-- ROLE: operator
-- KEYS: @waiting!
-- ARGV: wanted channel index [id]...
--   wanted: '1' pauses, '0' resumes
-- USES: time waiting.index waiting.wake waiting.holds
-- FLAGS: allow-oom
-- Returns: the number of ids that this changed.
-- Cost: O(log n) per id. Repeated: no effect; an id is paused since the first time.
local before, now, changed = first_due(), seconds(now_us()), 0
any_paused = any_paused or wanted == '1'
for i = rest, #ARGV do
  local held_at, paused_at = pause_of(ARGV[i])
  if (wanted == '1') ~= (paused_at ~= nil) then
    set_pause(ARGV[i], held_at, wanted == '1' and tonumber(now) or nil)
    changed = changed + 1
  end
end
wake(before)
return changed
