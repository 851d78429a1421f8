-- Reads a page of a tracker's calls, in the order in which they were added.
--
-- ROLE: caller reader
-- KEYS: tracked places messages
-- ARGV: after limit [state]...
--   after: the last position of the previous page; state: numbers of states, in the order of lib/track.lua
-- USES:
-- Returns: {position, number of the state, call, its record, messages or '', ...}.
-- Cost: O(states (log n + limit)).
local SPAN = 1099511627776

local found = {}
for i = rest, #ARGV do
  local first = string.format('(%.0f', ARGV[i] * SPAN + after)
  local stop = string.format('(%.0f', (ARGV[i] + 1) * SPAN)
  local calls = redis.call('ZRANGEBYSCORE', places, first, stop, 'WITHSCORES', 'LIMIT', 0, limit)
  for j = 1, #calls, 2 do
    found[#found + 1] = {calls[j + 1] % SPAN, tonumber(ARGV[i]), calls[j]}
  end
end
table.sort(found, function(a, b)
  return a[1] < b[1]
end)

local reply = {}
for i = 1, math.min(#found, tonumber(limit)) do
  local place, state, call = unpack(found[i])
  local record, texts = redis.call('HGET', tracked, call), redis.call('HGET', messages, call)
  for _, value in ipairs({place, state, call, record or '', texts or ''}) do
    reply[#reply + 1] = value
  end
end
return reply
