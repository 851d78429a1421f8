-- Moves waiting jobs to the morgue.
--
-- ROLE: operator
-- KEYS: meta @waiting jobs spill spill_order failed errors @morgue processing tries crash_marks
-- POLICY KEYS: debounce? early_due?
-- ARGV: merge policy only_failed reason limit max_bytes [id]...
--   only_failed: '1' skips jobs that have not failed; reason: the error of a job without one, alive or dead
--   limit, max_bytes: maximum number of payloads to move in this step, and of bytes
-- USES: time payloads.change waiting.jobs morgue morgue.history processing.orphans
-- Returns: {ids dealt with, jobs moved, orphans (see lib/processing.lua)}; go on with the ids that are left.
-- Cost: O(limit log n).
local now = seconds(now_us())
local budget, bytes_left, moved, orphans = tonumber(limit), tonumber(max_bytes), 0, {}
local last_call = redis.call('HGET', meta, 'last_call')

local function wanted(id)
  return redis.call('ZSCORE', failed, id) or only_failed ~= '1' and redis.call('HEXISTS', jobs, id) == 1
end

-- Returns the number of ids dealt with.
local function bury_jobs()
  for i = rest, #ARGV do
    local id = ARGV[i]
    if wanted(id) then
      local items, more, _, bytes = set_take(waiting, id, budget, bytes_left)
      local known = redis.call('HGET', errors, id) or redis.call('HGET', dead_errors, id)
      bury(id, items, known or reason, now)
      if more then
        return i - rest
      end
      remove_waiting(id)
      forget_history(id)
      add_orphan(orphans, id, last_call)
      moved, budget, bytes_left = moved + 1, budget - #items, bytes_left - bytes
    end
    if budget <= 0 or bytes_left <= 0 then
      return i - rest + 1
    end
  end
  return #ARGV - rest + 1
end

local dealt = bury_jobs()
count_payloads(waiting)
return {dealt, moved, orphans}
