-- Needs KEYS paused?, ranked?, classes?. A waiting job with another priority than 0 lies in `ranked` in place of `due`, and
-- has a place in `classes`: those of one priority side by side, the oldest first. Those of paused ids (see held) have
-- negative places, so that nobody who looks for work meets them.
-- Nearly always there is neither a paused id nor a priority, and one look tells that.
local CLASS = 2 ^ 34
local any_special = redis.call('EXISTS', paused, classes) > 0
local any_paused = any_special and redis.call('ZCARD', paused) > 0
local any_ranked = any_special and redis.call('ZCARD', classes) > 0
if any_ranked then
  redis.call('ZCARD', ranked)
end

-- A time beyond a class (the year 2514) counts as its last one.
local function class_score(class, perform_in)
  local time = math.max(0, math.min(tonumber(perform_in), CLASS - 1))
  return string.format('%.6f', class * CLASS + time)
end

-- The priority of a waiting job; 0 is the most urgent.
local function rank_of(id)
  local score = any_ranked and redis.call('ZSCORE', classes, id)
  return score and math.abs(math.floor(tonumber(score) / CLASS)) or 0
end
