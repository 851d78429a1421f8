-- The isolation of a job (rule 5, rules/isolation.py): the fraction of its retry_count.
--
-- '<retry_count>.<largest batch><parts>', three digits each: isolation is stored and moved with retry_count at no cost.

-- Maximum number of jobs in the next batch of an isolated job; nil for other jobs.
local function largest_batch(retry_count)
  local fraction = math.floor(tonumber(retry_count) % 1 * 1000000 + 0.5)
  return fraction >= 1000 and math.floor(fraction / 1000) or nil
end
