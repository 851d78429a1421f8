-- Needs KEYS lease and ARGV owner, epoch. True when they are the shard's current ones.
local function is_owner()
  local current = redis.call('HMGET', lease, 'owner', 'epoch')
  return current[1] == owner and current[2] == epoch
end

local function refuse()
  return redis.error_reply('NOTOWNER ' .. (redis.call('HGET', lease, 'epoch') or '0'))
end
