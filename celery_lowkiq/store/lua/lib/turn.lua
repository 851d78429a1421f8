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
