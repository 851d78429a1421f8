-- Needs KEYS due, paused?, held?, and ranks. A waiting job of a paused id lies in `held` in place of `due` or `ranked`:
-- whoever looks for work does not meet it. While no id of the shard is paused, nothing is held.
if any_paused then
  redis.call('ZCARD', held)
end

-- Where a waiting job of the id lies.
local function index_of(id)
  if any_paused and redis.call('ZSCORE', paused, id) then
    return held
  end
  return any_ranked and rank_of(id) > 0 and ranked or due
end

-- Takes a waiting job out of wherever it lies: its id may have been paused since.
local function lift(id)
  redis.call('ZREM', due, id)
  if any_paused then
    redis.call('ZREM', held, id)
  end
  if any_ranked then
    redis.call('ZREM', ranked, id)
    redis.call('ZREM', classes, id)
  end
end

-- A waiting job, wherever it lay, is due at perform_in, with that priority.
local function lay(id, perform_in, rank)
  if any_ranked and rank ~= rank_of(id) then
    lift(id)
  end
  if rank > 0 then
    any_ranked = true
    redis.call('ZADD', classes, class_score(rank, perform_in), id)
  end
  local index = index_of(id)
  redis.call('ZADD', index, perform_in, id)
  if rank > 0 and index == held then
    redis.call('ZADD', classes, class_score(-rank, perform_in), id)
  end
end
