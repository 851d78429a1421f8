-- The retry_count of a job that is isolated (rule 5, rules/isolation.py) has that as its fraction, wherever it is kept:
-- '<retry_count>.<largest batch><parts>', three digits each. So it goes wherever retry_count goes, at no cost.

-- How many jobs the next batch of an isolated job has at most; nil for any other job.
local function largest_batch(retry_count)
  local fraction = math.floor(tonumber(retry_count) % 1 * 1000000 + 0.5)
  return fraction >= 1000 and math.floor(fraction / 1000) or nil
end
