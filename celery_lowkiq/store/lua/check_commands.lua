-- Tries the commands that scripts need, and that a service may forbid in scripts.
--
-- ROLE: worker
-- KEYS: lease?
-- ARGV:
-- USES:
-- Returns: {command, error, ...} of those that were refused
-- Cost: O(1), and INFO.
local refused = {}
for _, command in ipairs({{'TIME'}, {'INFO', 'server'}}) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1], refused[#refused + 2] = command[1], reply.err
  end
end
return refused
