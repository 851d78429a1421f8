-- Deletes records of calls whose results are stored.
--
-- ROLE: operator
-- KEYS: lease meta? calls
-- ARGV: owner epoch [first last]...
--   first, last: range of members, each without its record
-- USES: time lease.owner
-- FLAGS: allow-oom
-- Returns: how many were deleted; error NOTOWNER <epoch>.
-- Cost: O(log n) a record. Repeated: no effect.
if not is_owner() then
  return refuse()
end
local deleted = 0
for i = rest, #ARGV, 2 do
  deleted = deleted + redis.call('ZREMRANGEBYLEX', calls, '[' .. ARGV[i], '[' .. ARGV[i + 1] .. '\255')
end
return deleted
