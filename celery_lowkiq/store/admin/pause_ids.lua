-- Pauses ids, or ends their pause: the waiting job of a paused id lies in due_paused, whether it came before or comes
-- later. A resumed one is due at its own time.
--
-- KEYS: @waiting!
-- ARGV: wanted channel index [id]...
--   wanted: '1' pauses, '0' resumes
-- USES: time waiting_index wake
-- FLAGS: allow-oom
-- Returns: the number of ids that this changed.
-- Cost: O(log n) per id. Repeated: no effect; an id is paused since the first time.
local before, now, changed = first_due(), seconds(now_us()), 0
any_paused = any_paused or wanted == '1'
for i = rest, #ARGV do
  if wanted == '1' then
    changed = changed + redis.call('ZADD', paused, 'NX', now, ARGV[i])
  else
    changed = changed + redis.call('ZREM', paused, ARGV[i])
  end
  index_move(ARGV[i])
end
wake(before)
return changed
