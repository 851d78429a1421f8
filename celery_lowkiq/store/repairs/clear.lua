-- Deletes a key of another type than its own: nothing in it is ours.
--
-- KEYS: index?
-- ARGV: probe
--   probe: the command that counts the entries of a key of the right type
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the key is missing, or as it should be.
-- Cost: O(1), or the length of what is deleted. Repeated: nothing is left.
if type(redis.pcall(probe, index)) ~= 'table' then
  return 0
end
return redis.call('DEL', index)
