-- Renews the leases of many shards: increments their counters, by which other nodes see that the owner is alive.
--
-- Leaves to renew.lua each lease whose owner and epoch are not the stored ones, or that is marked as stopping or damaged.
--
-- ROLE: worker
-- KEYS: [lease]...
-- ARGV: owner turn [epoch]...
--   turn: number of the owner's turn
-- USES: lease.server lease.turn
-- FLAGS: allow-oom
-- Returns: {the name of this server, positions of the leases that are not renewed...}.
-- Cost: O(leases), which the caller bounds, and INFO. Repeated: the counters grow once more, which is harmless.
local left = {server_name()}
for i, lease in ipairs(KEYS) do
  local current = redis.pcall('HMGET', lease, 'owner', 'epoch', 'stopping', 'turn')
  local epoch = ARGV[rest + i - 1]
  local plain = current[1] == owner and current[2] == epoch and current[3] == '0'
  if not plain or type(redis.pcall('HINCRBY', lease, 'counter', 1)) ~= 'number' then
    left[#left + 1] = i
  else
    mark_turn(lease, current[4], epoch, turn)
  end
end
return left
