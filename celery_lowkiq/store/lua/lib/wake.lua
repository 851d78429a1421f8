-- Announces a smaller first perform_in of the shard on the queue's channel.
--
-- ARGV: channel index
-- USES: due_index
-- A larger one is not announced: workers poll at the earlier time that they know.
local function first_due()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  local other = any_prioritized and redis.call('ZRANGE', due_prioritized, 0, 0, 'WITHSCORES')[2]
  return other and (not first or tonumber(other) < tonumber(first)) and other or first
end

local function wake(before)
  local after = first_due()
  if after and (not before or tonumber(after) < tonumber(before)) then
    redis.call('PUBLISH', channel, index .. ' ' .. after)
  end
end
