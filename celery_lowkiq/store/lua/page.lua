-- Reads a page of a sorted set, from (score, id) on, in the order of score and id.
--
-- ROLE: reader
-- KEYS: index
-- ARGV: minimum maximum after_score after_id past limit reverse
--   minimum, maximum: bounds of the score, as for ZRANGEBYSCORE; after_score: '' for the first page
--   past: '0' includes (score, id) itself; reverse: '1' for descending order
-- USES:
-- Returns: {id, score, ...}.
-- Cost: O(log n * log n + limit).
local size = redis.call('ZCARD', index)

-- Redis orders members by bytes, but Lua compares text by the server's locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- Returns the rank of the first member at or after (score, id), or after it with `beyond`.
local function rank(score, id, beyond)
  local low, high = 0, size
  while low < high do
    local middle = math.floor((low + high) / 2)
    local at = redis.call('ZRANGE', index, middle, middle, 'WITHSCORES')
    local other = tonumber(at[2])
    local less = other < score or (other == score and (before(at[1], id) or (beyond and at[1] == id)))
    if less then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local first = size - redis.call('ZCOUNT', index, minimum, '+inf')
local last = redis.call('ZCOUNT', index, '-inf', maximum) - 1
if reverse == '1' then
  if after_score ~= '' then
    last = math.min(last, rank(tonumber(after_score), after_id, past == '0') - 1)
  end
  first = math.max(first, last - limit + 1)
else
  if after_score ~= '' then
    first = math.max(first, rank(tonumber(after_score), after_id, past == '1'))
  end
  last = math.min(last, first + limit - 1)
end
if first > last then
  return {}
end
local found = redis.call('ZRANGE', index, first, last, 'WITHSCORES')
if reverse ~= '1' then
  return found
end
local reversed = {}
for i = #found - 1, 1, -2 do
  reversed[#reversed + 1] = found[i]
  reversed[#reversed + 1] = found[i + 1]
end
return reversed
