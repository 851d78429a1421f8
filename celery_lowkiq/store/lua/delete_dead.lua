-- Deletes dead jobs. An id that they hold goes on.
--
-- ROLE: operator
-- KEYS: meta @waiting jobs processing tries crash_marks @morgue
-- ARGV: merge policy channel index maximum limit max_bytes [id]...
--   maximum: deletes only jobs whose updated_at is at most this
--   limit, max_bytes: maximum number of payloads to delete in this step, and of bytes
-- USES: morgue time waiting.index waiting.wake payloads.change waiting.holds morgue.history
-- Returns: {ids dealt with, jobs deleted}; go on with the ids that are left. Error SHARDS <stored route> in a migration.
-- Cost: O(limit log n).
local refused = refuse_in_migration()
if refused then
  return refused
end
local before = first_due()
local budget, bytes_left, deleted = tonumber(limit), tonumber(max_bytes), 0

local function delete()
  for i = rest, #ARGV do
    local id = ARGV[i]
    local updated_at = redis.call('ZSCORE', dead, id)
    if budget <= 0 or bytes_left <= 0 then
      return i - rest
    elseif updated_at and tonumber(updated_at) <= tonumber(maximum) then
      local items, more, _, bytes = set_take(morgue, id, budget, bytes_left)
      budget, bytes_left = budget - math.max(#items, 1), bytes_left - bytes
      if more then
        return i - rest
      end
      remove_dead(id)
      redis.call('HDEL', dead_jobs, id)
      end_hold(id)
      forget_history(id)
      deleted = deleted + 1
    end
  end
  return #ARGV - rest + 1
end

local dealt = delete()
wake(before)
return {dealt, deleted}
