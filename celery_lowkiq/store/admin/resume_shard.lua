-- Ends the pause of a shard; one of its whole queue goes on.
--
-- KEYS: meta @waiting
-- ARGV: channel index
-- USES: waiting_index wake
-- FLAGS: allow-oom
-- Returns: 1, or 0 when it was not paused.
-- Cost: O(log n).
local ended = redis.call('HDEL', meta, 'paused')
if ended == 1 then
  wake(nil)
end
return ended
