-- Needs policy, keep, stale, waiting and processing. What of claimed jobs nobody wants any more: {id, how many of its
-- payloads, from the smallest score on, ...}. The claim hands them out all the same: their calls are to be told.
local function drops(batch)
  local found = {}
  -- id, processing record, ...
  for i = 1, #batch, 2 do
    local id, items = batch[i], read_held(batch[i + 1]).items
    local count, peak = 0, asked.stale and peak_of(id)
    while peak and items[count + 1] and items[count + 1][3] < peak do
      count = count + 1
    end
    if asked.keep then
      count = math.max(count, math.min(#items + size_of(waiting, id) - asked.keep, #items))
    end
    if count > 0 then
      found[#found + 1], found[#found + 2] = id, count
    end
  end
  return found
end
