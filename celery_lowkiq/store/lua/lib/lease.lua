-- The lease of a shard, and the server that has given it.

-- PART: server
-- The run_id of this server process, which changes with each restart and failover.
--
-- '' when INFO is forbidden: then a lease that was lost in a failover is not recognized as lost.
local function server_name()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end

-- PART: owner
-- Checks that owner and epoch are the shard's current ones.
--
-- KEYS: lease meta
-- ARGV: owner epoch
-- USES: time
local is_owner

do
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
  function is_owner()
    local current = redis.call('HMGET', lease, 'owner', 'epoch')
    return current[1] == owner and current[2] == epoch or (current[1] or '') == '' and restored()
  end
end

local function refuse()
  return redis.error_reply('NOTOWNER ' .. (redis.call('HGET', lease, 'epoch') or '0'))
end

-- PART: turn
-- The turn of its owner in which a lease was last renewed: '<epoch> <turn>'.
--
-- An owner sends a turn's number as its heartbeat after the renewals of that turn. So a lease that shows at most that number
-- has not been renewed since the heartbeat. The number of an epoch never falls, also when a renewal arrives late.
local function mark_turn(lease, stored, epoch, turn)
  local of, before = string.match(stored or '', '^(%d+) (%d+)$')
  if of ~= epoch or tonumber(before) < tonumber(turn) then
    redis.call('HSET', lease, 'turn', epoch .. ' ' .. turn)
  end
end
