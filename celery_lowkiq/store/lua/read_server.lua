-- Reads the name of the server that has a shard's keys.
--
-- ROLE: reader
-- KEYS: lease?
-- ARGV:
-- USES: lease.server
-- Returns: the name.
-- Cost: O(1), and INFO.
return server_name()
