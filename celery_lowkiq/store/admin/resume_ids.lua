-- Ends the pause of ids: what is held of them becomes due at its own time.
--
-- KEYS: paused held due ranked? classes?
-- ARGV: channel index [id]...
-- USES: ranks wake
-- FLAGS: allow-oom
-- Returns: how many were paused.
-- Cost: O(log n) an id.
local before = first_due()
local ids = {unpack(ARGV, rest)}
local waiting, moved = {}, {}
for i, perform_in in ipairs(redis.call('ZMSCORE', held, unpack(ids))) do
  if perform_in then
    waiting[#waiting + 1] = ids[i]
    local rank = rank_of(ids[i])
    if rank == 0 then
      moved[#moved + 1], moved[#moved + 2] = perform_in, ids[i]
    else
      redis.call('ZADD', ranked, perform_in, ids[i])
      redis.call('ZADD', classes, class_score(rank, perform_in), ids[i])
    end
  end
end
if #waiting > 0 then
  redis.call('ZREM', held, unpack(waiting))
  if #moved > 0 then
    redis.call('ZADD', due, unpack(moved))
  end
  wake(before)
end
return redis.call('ZREM', paused, unpack(ids))
