-- Whether the lease of a shard was given by another server than this one.
--
-- KEYS: lease
-- USES: server
-- Its owner may run jobs by claims that a failover has lost: only under a lease of this server, the shard knows all of them.

-- The lease as '<owner> <epoch> <counter>'; '' for one that this server gave, for a shard without an owner, and for a user
-- who may not ask which server this is.
local function given_elsewhere()
  local found = redis.call('HMGET', lease, 'owner', 'server', 'epoch', 'counter')
  local server = (found[1] or '') ~= '' and server_name() or ''
  if server == '' or found[2] == server then
    return ''
  end
  return found[1] .. ' ' .. (found[3] or '') .. ' ' .. (found[4] or '')
end
