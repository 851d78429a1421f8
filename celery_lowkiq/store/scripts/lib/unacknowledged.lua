-- Ids of claims that their owner does not have in hand, in the order of these claims.
--
-- KEYS: claimed
-- ARGV: open
-- open: the numbers of the claims that the owner has in hand, or 'any' when it does not say. A Redis that lost its last
-- writes has forgotten that other claims were settled, or made.
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
