-- Makes some waiting jobs due now. Those that are held stay so, and are due at once when their ids are resumed.
--
-- KEYS: due paused? held?
-- ARGV: channel index [id]...
-- USES: time wake held
-- Returns: how many were due later.
-- Cost: O(log n) an id. Repeated: those that are due stay as they are.
local before = head()
local now = seconds(now_us())
local hastened = 0
for i = rest, #ARGV do
  local place = index_of(ARGV[i])
  local perform_in = redis.call('ZSCORE', place, ARGV[i])
  if perform_in and tonumber(perform_in) > tonumber(now) then
    redis.call('ZADD', place, now, ARGV[i])
    hastened = hastened + 1
  end
end
wake(before)
return hastened
