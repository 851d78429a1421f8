-- Moves dead jobs, as they stand now, from the morgue back to the queue (rule 4).
--
-- KEYS: meta due ranked? classes? paused? held? jobs spill order failed errors dead dead_ids dead_jobs dead_spill dead_order dead_errors
-- POLICY KEYS: first? early? peaks?
-- ARGV: merge policy channel index maximum force limit max_bytes [id]...
--   force: '1' moves stale payloads, too; maximum: only ids with an updated_at not above it
--   limit: payloads to move in this step
-- USES: time ranks wake bag_read bag held policy keep stale waiting morgue
-- Returns: {ids dealt with, jobs moved}; go on with the ids that are left.
-- Cost: O(limit log n).
local now = seconds(now_us())
local before = first_due()
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
      -- Stale payloads stay: the queue would drop them. Those that are forced count as new from now on.
      local peak = asked.stale and peak_of(id)
      if peak and force == '1' then
        redis.call('HDEL', peaks, id)
        peak = nil
      end
      local items, more, cut = bag_take(morgue, id, budget, tonumber(max_bytes), peak)
      put_back(id, items, now, '-1', '', asked.rank or 0)
      budget = budget - math.max(#items, 1)
      if cut then
        return i - rest
      end
      moved = moved + (#items > 0 and 1 or 0)
      if not more then
        redis.call('ZREM', dead, id)
        redis.call('ZREM', dead_ids, id)
        redis.call('HDEL', dead_errors, id)
      end
    end
  end
  return #ARGV - rest + 1
end

local dealt = revive()
wake(before)
return {dealt, moved}
