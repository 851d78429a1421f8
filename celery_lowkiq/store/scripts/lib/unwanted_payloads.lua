-- Payloads of claimed jobs that a policy drops: {id, how many from the smallest score on, ...}.
--
-- USES: policy keep_highest drop_stale waiting processing
-- The claim hands them out all the same: their calls get a result.
local function unwanted_payloads(batch)
  local found = {}
  -- id, processing record, ...
  for i = 1, #batch, 2 do
    local id, items = batch[i], read_processing(batch[i + 1]).items
    local count, done_score = 0, options.drop_stale and done_score_of(id)
    while done_score and items[count + 1] and items[count + 1][3] < done_score do
      count = count + 1
    end
    if options.keep then
      count = math.max(count, math.min(#items + size_of(waiting, id) - options.keep, #items))
    end
    if count > 0 then
      found[#found + 1], found[#found + 2] = id, count
    end
  end
  return found
end
