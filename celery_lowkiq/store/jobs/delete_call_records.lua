-- Deletes records of calls that have ended: their results are written.
--
-- KEYS: lease meta? calls
-- ARGV: owner epoch [first last]...
--   first, last: beginnings of members, up to the call's number
-- USES: time server owner
-- FLAGS: allow-oom
-- Returns: how many were deleted; error NOTOWNER <epoch>.
-- Cost: O(log n) a record. Repeated: nothing is left.
if not is_owner() then
  return refuse()
end
local deleted = 0
for i = rest, #ARGV, 2 do
  deleted = deleted + redis.call('ZREMRANGEBYLEX', calls, '[' .. ARGV[i], '[' .. ARGV[i + 1] .. '\255')
end
return deleted
