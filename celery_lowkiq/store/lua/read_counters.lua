-- Reads the counters of shards of a queue, and their largest lag.
--
-- ROLE: worker
-- KEYS: [meta due due_prioritized claimed]...
-- ARGV:
-- USES: time
-- Returns: {failed in all shards, lag (s) as text, processed in each shard...}.
-- Cost: O(shards + jobs in processing), which the caller bounds.
-- A damaged index counts as one without jobs: claims and statistics report it.
local now = seconds(now_us())

-- The smallest perform_in among ids that are not in processing; at most `claimed` of the first ones are.
local function soonest(index, claimed)
  local running = redis.pcall('ZCARD', claimed)
  if type(running) == 'number' then
    local heads = redis.pcall('ZRANGE', index, 0, running, 'WITHSCORES')
    for i = 1, #heads, 2 do
      if not redis.call('ZSCORE', claimed, heads[i]) then
        return tonumber(heads[i + 1])
      end
    end
  end
  return now
end

local counters, lag = {0, 0}, 0
for i = 1, #KEYS, 4 do
  local meta, due, due_prioritized, claimed = unpack(KEYS, i, i + 3)
  local counted = redis.call('HMGET', meta, 'processed', 'failed', 'paused', 'queue_paused')
  counters[1] = counters[1] + (tonumber(counted[2]) or 0)
  counters[#counters + 1] = tonumber(counted[1]) or 0
  if not counted[3] and not counted[4] then
    lag = math.max(lag, now - soonest(due, claimed), now - soonest(due_prioritized, claimed))
  end
end
counters[2] = string.format('%.1f', lag)
return counters
