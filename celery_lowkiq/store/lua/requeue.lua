-- Moves dead jobs from the morgue back to the queue (rule 4). An id that they hold goes on with the last of them.
--
-- ROLE: operator
-- KEYS: meta @waiting jobs spill spill_order failed errors @morgue arrived?
-- POLICY KEYS: debounce? early_due? done_scores?
-- ARGV: merge policy channel index maximum force limit max_bytes [id]...
--   maximum: moves only jobs whose updated_at is at most this; force: '1' also moves stale payloads
--   limit, max_bytes: maximum number of payloads to move in this step, and of bytes
-- USES: morgue time waiting.index waiting.wake payloads.change payloads.last processing.restore waiting.holds policies policies.drop_stale
-- Returns: {ids dealt with, jobs moved}; go on with the ids that are left. Error SHARDS <stored route> in a
--   migration.
-- Cost: O(limit log n).
local refused = refuse_in_migration()
if refused then
  return refused
end
local now = seconds(now_us())
local before = first_due()
local budget, bytes_left, moved = tonumber(limit), tonumber(max_bytes), 0

local function wanted(id)
  local updated_at = redis.call('ZSCORE', dead, id)
  return updated_at and tonumber(updated_at) <= tonumber(maximum)
end

-- Returns items, whether the job has others, whether a limit has left some of these, and at least the bytes of the payloads.
-- Takes the last payloads of a held id first, which no claim takes meanwhile: later restored ones precede equal scores.
local function take(id, done_score)
  if done_score or not pause_of(id) then
    return set_take(morgue, id, budget, bytes_left, done_score)
  end
  local _, record, more = set_take_last(morgue, id, budget, bytes_left)
  return unpack_items(record or ''), more, more, #(record or '')
end

local function requeue()
  for i = rest, #ARGV do
    local id = ARGV[i]
    if budget <= 0 or bytes_left <= 0 then
      return i - rest
    end
    if wanted(id) then
      -- Stale payloads stay in the morgue because the queue would drop them. With force, they are new from now on.
      local done_score = hooks.done_score and hooks.done_score(id)
      if done_score and force == '1' then
        redis.call('HDEL', done_scores, id)
        done_score = nil
      end
      local items, more, cut, bytes = take(id, done_score)
      restore_job(id, items, now, '-1', '', options.priority or 0)
      budget, bytes_left = budget - math.max(#items, 1), bytes_left - bytes
      if cut then
        return i - rest
      end
      moved = moved + (#items > 0 and 1 or 0)
      if not more then
        remove_dead(id)
        end_hold(id)
      end
    end
  end
  return #ARGV - rest + 1
end

local dealt = requeue()
count_payloads(waiting)
wake(before)
return {dealt, moved}
