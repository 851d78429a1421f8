-- The name of this server process: another one after each restart and each failover.
--
-- Empty where the server does not tell: then a lost write of a failover looks like a lease that never was.
local function server_name()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
