-- Makes some waiting jobs due now. Those of paused ids stay paused, and are due at once when their ids are resumed.
--
-- KEYS: @waiting
-- ARGV: channel index [id]...
-- USES: time waiting_index wake
-- Returns: how many were due later.
-- Cost: O(log n) an id. Repeated: those that are due stay as they are.
local before = first_due()
local now = seconds(now_us())
local moved = 0
for i = rest, #ARGV do
  local perform_in = index_score(ARGV[i])
  if perform_in and tonumber(perform_in) > tonumber(now) then
    index_put(ARGV[i], now, priority_of(ARGV[i]))
    moved = moved + 1
  end
end
wake(before)
return moved
