-- Deletes a key of the wrong type: another program wrote it.
--
-- ROLE: operator
-- KEYS: index?
-- ARGV: probe
--   probe: the command that counts the entries of a key of the right type
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the key is missing or of the right type.
-- Cost: O(1), or the size of the deleted key. Repeated: no effect.
if type(redis.pcall(probe, index)) ~= 'table' then
  return 0
end
return redis.call('DEL', index)
