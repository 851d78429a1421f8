-- Ids of claims that are not open claims of the owner, in the order of the claims.
--
-- KEYS: claimed
-- ARGV: open
-- open: numbers of the open claims, or 'any'. A Redis that lost its last writes may have lost other claims, or their settles.
local function unacknowledged()
  if open == 'any' or redis.call('ZCARD', claimed) == 0 then
    return {}
  end
  local known, found = {}, {}
  for number in string.gmatch(open, '%d+') do
    known[number] = true
  end
  local ids = redis.call('ZRANGE', claimed, 0, -1, 'WITHSCORES')
  for i = 1, #ids, 2 do
    if not known[ids[i + 1]] then
      found[#found + 1] = ids[i]
    end
  end
  return found
end
