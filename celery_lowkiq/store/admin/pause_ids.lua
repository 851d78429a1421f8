-- Pauses ids: their waiting jobs move to due_paused, and so do later ones.
--
-- KEYS: @waiting!
-- ARGV: [id]...
-- USES: time waiting_index
-- FLAGS: allow-oom
-- Returns: how many were not paused.
-- Cost: O(log n) an id. Repeated: they are paused since the first time.
local now, added = seconds(now_us()), 0
for i = rest, #ARGV do
  added = added + redis.call('ZADD', paused, 'NX', now, ARGV[i])
  any_paused = true
  index_move(ARGV[i])
end
return added
