-- Needs KEYS meta, due, claimed. The smallest perform_in among ids that may be claimed ('' when none): an id
-- in processing waits for its settle, and there are never more of those than claims in flight.
local pauses = redis.call('HMGET', meta, 'paused', 'queue_paused')
local shard_paused = pauses[1] or pauses[2]

local function next_due()
  if shard_paused then
    return ''
  end
  local heads = redis.call('ZRANGE', due, 0, redis.call('ZCARD', claimed), 'WITHSCORES')
  for i = 1, #heads, 2 do
    if not redis.call('ZSCORE', claimed, heads[i]) then
      return heads[i + 1]
    end
  end
  return ''
end
