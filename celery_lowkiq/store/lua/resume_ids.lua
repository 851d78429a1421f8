-- Ends the pause of ids: what is held of them becomes due at its own time.
--
-- KEYS: paused held due
-- ARGV: channel index [id]...
-- USES: wake
-- FLAGS: allow-oom
-- Returns: how many were paused.
-- Cost: O(log n) an id.
local before = head()
local ids = {unpack(ARGV, rest)}
local waiting, moved = {}, {}
for i, perform_in in ipairs(redis.call('ZMSCORE', held, unpack(ids))) do
  if perform_in then
    waiting[#waiting + 1] = ids[i]
    moved[#moved + 1], moved[#moved + 2] = perform_in, ids[i]
  end
end
if #waiting > 0 then
  redis.call('ZREM', held, unpack(waiting))
  redis.call('ZADD', due, unpack(moved))
  wake(before)
end
return redis.call('ZREM', paused, unpack(ids))
