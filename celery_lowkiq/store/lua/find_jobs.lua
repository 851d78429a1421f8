-- Finds the shards that have waiting jobs, among those that the caller knows to have been empty.
--
-- ROLE: reader worker
-- KEYS: [jobs]...
-- ARGV:
-- USES: time
-- Returns: {now, position, ...} of the shards with waiting jobs.
-- Cost: O(shards), which the caller bounds.
local found = {seconds(now_us())}
for i, jobs in ipairs(KEYS) do
  if redis.call('EXISTS', jobs) == 1 then
    found[#found + 1] = i
  end
end
return found
