-- The run_id of this server process, which changes with each restart and failover.
--
-- '' when INFO is forbidden: then a lease that was lost in a failover is not recognized as lost.
local function server_name()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
