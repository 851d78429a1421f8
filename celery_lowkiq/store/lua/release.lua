-- Releases a shard and announces that to the other nodes. The released lease names the server that its owner knows of: if that
-- is another one, the next owner waits for a lease time, as after a lost owner.
--
-- ROLE: worker
-- KEYS: lease meta? claimed
-- ARGV: owner epoch channel index server unsettled
--   server: the one that gave the lease, or that answered a renewal in time
--   unsettled: '1' leaves the jobs in processing to the next owner, which recovers them without counting a crash, once
--     the process that runs them has had the time to end
-- USES: time lease.server lease.owner
-- FLAGS: allow-oom
-- Returns: 1, or 0 while the shard has jobs in processing, and on another server, unless unsettled; error NOTOWNER <epoch>.
-- Cost: O(1), and INFO.
local current = redis.call('HMGET', lease, 'owner', 'epoch')
if current[1] == '' and current[2] == epoch then
  return 1
end
if not is_owner() then
  return refuse()
end
if unsettled ~= '1' and (redis.call('ZCARD', claimed) > 0 or server ~= server_name()) then
  return 0
end
redis.call('HSET', lease, 'owner', '', 'since', seconds(now_us()), 'leaving', unsettled,
  'server', server)
redis.call('HINCRBY', lease, 'counter', 1)
redis.call('PUBLISH', channel, index .. ' released')
return 1
