-- Checks that owner and epoch are the shard's current ones.
--
-- KEYS: lease meta
-- ARGV: owner epoch
-- USES: time
-- A lost lease is written again by the owner of the shard's last claim. No other node has owned the shard since then: one that
-- finds no lease writes one with server 'lost' and waits (acquire.lua). It stays 'lost' until the owner releases it because this
-- server may have lost more than the lease, and the owner may be late.
local function restored()
  local current = redis.call('HMGET', lease, 'owner', 'epoch', 'server')
  local last_claim = redis.call('HGET', meta, 'request') or ''
  if current[1] and (current[2] ~= epoch or current[3] ~= 'lost') or string.match(last_claim, '^%d+') ~= epoch then
    return false
  end
  redis.call('HSET', lease, 'owner', owner, 'epoch', epoch, 'stopping', '0', 'leaving', '0', 'server', 'lost',
    'since', seconds(now_us()))
  redis.call('HINCRBY', lease, 'counter', 1)
  return true
end

-- True when they are the shard's current ones.
local function is_owner()
  local current = redis.call('HMGET', lease, 'owner', 'epoch')
  return current[1] == owner and current[2] == epoch or (current[1] or '') == '' and restored()
end

local function refuse()
  return redis.error_reply('NOTOWNER ' .. (redis.call('HGET', lease, 'epoch') or '0'))
end
