-- Needs KEYS ranked?, classes?. A waiting job with another priority than 0 lies in `ranked` in place of `due`, and has a
-- place in `classes`: those of one priority side by side, the oldest first, and those of paused ids (see held) behind
-- them all.
-- Who gives no priority pays one look.
local CLASS = 2 ^ 34
local HELD_CLASSES = 16
local any_ranked = redis.call('ZCARD', classes) > 0
if any_ranked then
  redis.call('ZCARD', ranked)
end

local function class_score(class, perform_in)
  return string.format('%.6f', class * CLASS + tonumber(perform_in))
end

-- The priority of a waiting job; 0 is the most urgent.
local function rank_of(id)
  local score = any_ranked and redis.call('ZSCORE', classes, id)
  return score and math.floor(tonumber(score) / CLASS) % HELD_CLASSES or 0
end
