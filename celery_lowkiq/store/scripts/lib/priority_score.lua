-- Scores in `by_priority`: priority and perform_in in one number.
local PRIORITY_SPAN = 2 ^ 34
local LEAST_URGENT = 9

-- A time beyond the span of a priority (the year 2514) counts as its last one.
local function priority_score(priority, perform_in)
  local time = math.max(0, math.min(tonumber(perform_in), PRIORITY_SPAN - 1))
  return string.format('%.6f', priority * PRIORITY_SPAN + time)
end
