-- The smallest perform_in among ids that may be claimed ('' when there is no such id).
--
-- KEYS: meta @waiting claimed
-- USES: due_index
-- Ids in processing are skipped. The head of the index has at most as many of them as `claimed` has members; mostly none.
local shard_paused
do
  local pauses = redis.call('HMGET', meta, 'paused', 'queue_paused')
  shard_paused = pauses[1] or pauses[2]
end

local function next_due(index)
  if shard_paused then
    return ''
  end
  local soonest = ''
  local heads = redis.call('ZRANGE', index or due, 0, 0, 'WITHSCORES')
  if heads[1] and redis.call('ZSCORE', claimed, heads[1]) then
    heads = redis.call('ZRANGE', index or due, 1, redis.call('ZCARD', claimed), 'WITHSCORES')
  end
  for i = 1, #heads, 2 do
    if not redis.call('ZSCORE', claimed, heads[i]) then
      soonest = heads[i + 1]
      break
    end
  end
  local other = any_prioritized and not index and next_due(due_prioritized) or ''
  return (soonest == '' or other ~= '' and tonumber(other) < tonumber(soonest)) and other or soonest
end
