-- Whether the lease of a shard was given by another server than this one.
--
-- KEYS: lease meta
-- USES: server
-- Its owner may run jobs whose claims a failover has lost: the shard knows all claims only under a lease of this server. So may
-- an unknown owner, when the failover has lost the lease, or that a released shard was acquired. A process that has released
-- the shard before the end of its batch may run on, too: such a lease of this server counts like one of another server.

-- The lease as '<owner> <epoch> <counter> <this server>'; '' for one of this server, for a shard that has never had an owner,
-- and for a user who may not ask which server this is.
local function given_elsewhere()
  local found = redis.call('HMGET', lease, 'owner', 'server', 'leaving', 'epoch', 'counter')
  local had_owner = found[1] or redis.call('HEXISTS', meta, 'request') == 1
  local server = had_owner and server_name() or ''
  if server == '' or found[2] == server and found[3] ~= '1' then
    return ''
  end
  return table.concat({found[1] or '', found[4] or '', found[5] or '', server}, ' ')
end
