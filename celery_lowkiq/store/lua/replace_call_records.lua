-- Replaces records of calls whose payloads are about to run: their time to live no longer applies.
--
-- ROLE: operator
-- KEYS: lease meta? calls
-- ARGV: owner epoch [member other]...
--   member: as it is stored; other: the same call with another record
-- USES: time lease.owner
-- FLAGS: allow-oom
-- Returns: the number of replaced records; error NOTOWNER <epoch>.
-- Cost: O(log n) a record. Repeated, or for a call that has ended: no effect.
if not is_owner() then
  return refuse()
end
local replaced = 0
for i = rest, #ARGV, 2 do
  if redis.call('ZREM', calls, ARGV[i]) == 1 then
    redis.call('ZADD', calls, 0, ARGV[i + 1])
    replaced = replaced + 1
  end
end
return replaced
