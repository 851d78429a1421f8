-- Needs KEYS due and ARGV channel, index. Tells workers when the shard's smallest perform_in moved down,
-- and only then: a worker that knows an earlier time looks again by itself.
local function head()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
end

local function wake(before)
  local after = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  if after and (not before or tonumber(after) < before) then
    redis.call('PUBLISH', channel, index .. ' ' .. after)
  end
end
