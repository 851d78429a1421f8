-- Whether the lease of a shard was given by another server than this one.
--
-- KEYS: lease meta
-- USES: server
-- Its owner may run jobs by claims that a failover has lost: only under a lease of this server, the shard knows all of them. So
-- may one that is unknown, when the failover has lost that a released shard was acquired, or when the lease itself was lost;
-- and for a moment a process that has released the shard before its batch has ended.

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
