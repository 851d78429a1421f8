-- The index `due`, in which all waiting jobs are while no id is paused, no job has a priority, and the shard is not in a
-- migration (waiting_index.lua).
--
-- KEYS: @waiting

-- One command finds out whether there is a paused id, or a job that has a priority or is being moved.
local any_special = redis.call('EXISTS', paused, by_priority, moving) > 0
local any_paused = any_special and redis.call('ZCARD', paused) > 0
local any_prioritized = any_special and redis.call('ZCARD', by_priority) > 0
local any_moving = any_special and redis.call('ZCARD', moving) > 0
if any_paused then
  redis.call('ZCARD', due_paused)
end
if any_prioritized then
  redis.call('ZCARD', due_prioritized)
end

local function due_remove(...)
  redis.call('ZREM', due, ...)
end

-- Adds jobs, {perform_in, id, ...}; one that is waiting keeps its place.
local function due_add(times)
  redis.call('ZADD', due, 'NX', unpack(times))
end
