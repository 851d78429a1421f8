-- Reads the leases of many shards. A key of another type counts as no lease: an acquire of the shard reports it.
--
-- ROLE: reader worker
-- KEYS: [lease]...
-- ARGV:
-- USES: lease.server
-- Returns: {server, {owner, given on, leaving, ...}, place, epoch, counter, turn, ...}: the holders, each once; then for each
--   lease the place of its holder among them, from 0.
-- Cost: O(leases), which the caller bounds, and INFO.
local holders, places, leases = {}, {}, {}
for i, lease in ipairs(KEYS) do
  local fields = redis.pcall('HMGET', lease, 'owner', 'server', 'leaving', 'epoch', 'counter', 'turn')
  if fields.err and not string.find(fields.err, 'WRONGTYPE', 1, true) then
    return fields
  end
  local owner, given_on, leaving = fields[1] or '', fields[2] or '', fields[3] or ''
  local name = table.concat({#owner, #given_on, owner, given_on, leaving}, ' ')
  if not places[name] then
    places[name] = #holders / 3
    holders[#holders + 1], holders[#holders + 2], holders[#holders + 3] = owner, given_on, leaving
  end
  local last = #leases
  leases[last + 1], leases[last + 2] = places[name], fields[4] or ''
  leases[last + 3], leases[last + 4] = fields[5] or '', fields[6] or ''
end
return {server_name(), holders, unpack(leases)}
