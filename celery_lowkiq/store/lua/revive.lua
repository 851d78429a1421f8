-- Moves dead jobs, as they stand now, from the morgue back to the queue (rule 4).
--
-- KEYS: meta due paused? held? jobs spill order failed errors dead dead_ids dead_jobs dead_spill dead_order dead_errors first? early? peaks?
-- ARGV: merge policy channel index maximum force limit max_bytes [id]...
--   force: '1' moves stale payloads, too; maximum: only ids with an updated_at not above it; limit: payloads to move in this step
-- USES: time wake bag_read bag held policy keep stale waiting morgue
-- Returns: {ids dealt with, jobs moved}; go on with the ids that are left.
-- Cost: O(limit log n).
local now = seconds(now_us())
local before = head()
local budget, moved = tonumber(limit), 0

local function wanted(id)
  local updated_at = redis.call('ZSCORE', dead, id)
  return updated_at and tonumber(updated_at) <= tonumber(maximum)
end

local function revive()
  for i = rest, #ARGV do
    local id = ARGV[i]
    if budget <= 0 then
      return i - rest
    end
    if wanted(id) then
      -- Stale payloads stay: the queue would drop them.
      local lowest = force ~= '1' and peak_of(id)
      local items, more = bag_take(morgue, id, budget, tonumber(max_bytes), lowest)
      put_back(id, items, now, '-1', '')
      budget = budget - #items
      if more and not lowest then
        return i - rest
      elseif more then
        moved = moved + (#items > 0 and 1 or 0)
        budget = budget - 1
        if #items > 0 then
          return i - rest
        end
      else
        redis.call('ZREM', dead, id)
        redis.call('ZREM', dead_ids, id)
        redis.call('HDEL', dead_errors, id)
        moved = moved + 1
      end
    end
  end
  return #ARGV - rest + 1
end

local dealt = revive()
wake(before)
return {dealt, moved}
