-- Ends the pause of ids: their waiting jobs become due at their own time.
--
-- KEYS: @waiting
-- ARGV: channel index [id]...
-- USES: waiting_index wake
-- FLAGS: allow-oom
-- Returns: how many were paused.
-- Cost: O(log n) an id.
local before, resumed = first_due(), 0
for i = rest, #ARGV do
  resumed = resumed + redis.call('ZREM', paused, ARGV[i])
  index_move(ARGV[i])
end
wake(before)
return resumed
