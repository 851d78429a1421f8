-- Needs KEYS meta, due, ranked, claimed, and ranks. The smallest perform_in among ids that may be claimed ('' when none):
-- an id in processing waits for its settle, and there are never more of those than claims in flight.
local pauses = redis.call('HMGET', meta, 'paused', 'queue_paused')
local shard_paused = pauses[1] or pauses[2]

local function next_due()
  if shard_paused then
    return ''
  end
  local first
  for _, index in ipairs(any_ranked and {due, ranked} or {due}) do
    local heads = redis.call('ZRANGE', index, 0, redis.call('ZCARD', claimed), 'WITHSCORES')
    for i = 1, #heads, 2 do
      if not redis.call('ZSCORE', claimed, heads[i]) then
        first = first and tonumber(first) < tonumber(heads[i + 1]) and first or heads[i + 1]
        break
      end
    end
  end
  return first or ''
end
