-- Makes some waiting jobs due now. Those that are held stay so, and are due at once when their ids are resumed.
--
-- KEYS: due ranked? classes? paused? held?
-- ARGV: channel index [id]...
-- USES: time ranks wake held
-- Returns: how many were due later.
-- Cost: O(log n) an id. Repeated: those that are due stay as they are.
local before = first_due()
local now = seconds(now_us())
local hastened = 0
for i = rest, #ARGV do
  local perform_in = redis.call('ZSCORE', index_of(ARGV[i]), ARGV[i])
  if perform_in and tonumber(perform_in) > tonumber(now) then
    lay(ARGV[i], now, rank_of(ARGV[i]))
    hastened = hastened + 1
  end
end
wake(before)
return hastened
