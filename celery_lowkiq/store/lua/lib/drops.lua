-- Needs policy, keep, stale, waiting and processing. What of claimed jobs nobody wants any more: {id, how many of its
-- payloads, from the smallest score on, ...}. The claim hands them out all the same: their calls are to be told.

local function below(items, peak)
  local count = 0
  while peak and items[count + 1] and items[count + 1][3] < peak do
    count = count + 1
  end
  return count
end

-- batch: id, processing record, ...
local function drops(batch)
  local found = {}
  for i = 1, (asked.keep or asked.stale) and #batch or 0, 2 do
    local id, items = batch[i], read_held(batch[i + 1]).items
    local excess = asked.keep and #items + size_of(waiting, id) - asked.keep or 0
    local count = math.max(below(items, peak_of(id)), math.min(excess, #items))
    if count > 0 then
      found[#found + 1], found[#found + 2] = id, count
    end
  end
  return found
end
