-- Needs KEYS due, ranked and ARGV channel, index, and ranks. Tells workers when the shard's smallest perform_in moved down,
-- and only then: a worker that knows an earlier time looks again by itself.
local function first_due()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  local other = any_ranked and redis.call('ZRANGE', ranked, 0, 0, 'WITHSCORES')[2]
  return other and (not first or tonumber(other) < tonumber(first)) and other or first
end

local function wake(before)
  local after = first_due()
  if after and (not before or tonumber(after) < tonumber(before)) then
    redis.call('PUBLISH', channel, index .. ' ' .. after)
  end
end
