-- Reads some entries of a key, in no order.
--
-- ROLE: reader
-- KEYS: index?
-- ARGV: command cursor limit server
--   command: ZSCAN or HSCAN
--   cursor: 0 at first, then as returned by the previous step
--   server: the one that returned it, '' at first; when another one has the key now, the scan begins again
-- USES: lease.server
-- Returns: {server, cursor, {member, score, ...}}; the cursor is 0 at the end
-- Cost: O(limit), and INFO.
local name = server_name()
local reply = redis.call(command, index, name == server and cursor or '0', 'COUNT', limit)
return {name, reply[1], reply[2]}
