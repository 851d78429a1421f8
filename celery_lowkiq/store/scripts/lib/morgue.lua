-- Needs KEYS meta, dead, dead_ids, dead_jobs, dead_spill, dead_order, dead_errors and ARGV merge.
local morgue = {records = dead_jobs, spill = dead_spill, order = dead_order}

local function bury(id, items, message, updated_at)
  if #items == 0 then
    return
  end
  redis.call('ZADD', dead, updated_at, id)
  redis.call('ZADD', dead_ids, 0, id)
  redis.call('HSET', dead_errors, id, message)
  redis.call('HINCRBY', meta, 'dead', #items)
  -- Their calls have ended: what comes back from the morgue has none.
  for _, item in ipairs(items) do
    item[4] = ''
  end
  bag_add(morgue, id, items, false)
end
