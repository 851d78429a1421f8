-- Needs KEYS due, paused?, held?. A waiting job of a paused id lies in `held` in place of `due`: whoever looks for work
-- does not meet it. While no id of the shard is paused, nothing is held.
local any_paused = redis.call('ZCARD', paused) > 0
if any_paused then
  redis.call('ZCARD', held)
end

-- Where a waiting job of the id lies.
local function index_of(id)
  return any_paused and redis.call('ZSCORE', paused, id) and held or due
end
