-- Moves waiting jobs to the morgue.
--
-- KEYS: meta @waiting jobs spill spill_order failed errors @morgue processing tries crash_marks
-- POLICY KEYS: debounce? early_due?
-- ARGV: merge policy only_failed reason limit max_bytes [id]...
--   only_failed: '1' skips jobs that have not failed; reason: the error of a job without one
--   limit, max_bytes: maximum number of payloads to move in this step, and of bytes
-- USES: time payload_set_read payload_set waiting_index policy keep_highest waiting morgue forget_history
-- Returns: {ids dealt with, jobs moved, orphans}; go on with the ids that are left. Orphans: id, number of the
--   shard's last call, processing record or '', ... of moved jobs that may have had calls.
-- Cost: O(limit log n).
local now = seconds(now_us())
local budget, moved, orphans = tonumber(limit), 0, {}
local last_call = redis.call('HGET', meta, 'last_call')

local function wanted(id)
  return redis.call('ZSCORE', failed, id) or only_failed ~= '1' and redis.call('HEXISTS', jobs, id) == 1
end

for i = rest, #ARGV do
  local id = ARGV[i]
  if wanted(id) then
    local items, more = set_take(waiting, id, budget, tonumber(max_bytes))
    bury(id, items, redis.call('HGET', errors, id) or reason, now)
    if more then
      return {i - rest, moved, orphans}
    end
    remove_waiting(id)
    forget_history(id)
    if last_call then
      for _, value in ipairs({id, last_call, redis.call('HGET', processing, id) or ''}) do
        orphans[#orphans + 1] = value
      end
    end
    moved, budget = moved + 1, budget - #items
  end
  if budget <= 0 then
    return {i - rest + 1, moved, orphans}
  end
end
return {#ARGV - rest + 1, moved, orphans}
