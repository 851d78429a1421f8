-- Reads the name of the server that has a shard's keys, and tries the commands that scripts need, and that a service may forbid
-- in scripts.
--
-- ROLE: reader worker
-- KEYS: lease?
-- ARGV:
-- USES: lease.server
-- Returns: {name, command, error, ...} of those that were refused.
-- Cost: O(1), and INFO.
local reply = {server_name()}
for _, command in ipairs({{'TIME'}, {'INFO', 'server'}}) do
  local tried = redis.pcall(unpack(command))
  if type(tried) == 'table' and tried.err then
    reply[#reply + 1], reply[#reply + 2] = command[1], tried.err
  end
end
return reply
