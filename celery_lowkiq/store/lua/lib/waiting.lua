-- The payload sets of waiting jobs, and their removal.
--
-- KEYS: jobs spill spill_order failed errors
-- USES: payload_count waiting_index policies policy_due
local waiting = {records = jobs, spill = spill, spill_order = spill_order}

-- Removes all that is stored of a waiting job beside its payloads.
local function remove_waiting(id)
  index_remove(id)
  redis.call('ZREM', failed, id)
  redis.call('HDEL', errors, id)
  if hooks.clear then
    hooks.clear(id)
  end
end
