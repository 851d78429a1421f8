-- The ids with the most waiting payloads, among those whose payloads are in `spill_order`: all of more than about 1 KiB.
--
-- KEYS: spill_order
-- USES: payload_set_read waiting_index
-- The members of an id are neighbours. So looks at every n-th member find each id that has at least n of them.
local LOOKS = 16
local BUSIEST = 5
-- A score that a push has made from Redis's clock.
local CLOCK_TIME = '^%d+%.%d%d%d%d%d%d$'

local function members_below(position)
  return redis.call('ZLEXCOUNT', spill_order, '-', position)
end

-- When the first call of an id arrived that is due and has its score from a push; '' without one.
local function waits_since(id, rank, now)
  local perform_in = index_score(id)
  local member = redis.call('ZRANGE', spill_order, rank, rank)[1]
  local score = member and member_item(id, member)[1] or ''
  local is_known = string.find(score, CLOCK_TIME) and perform_in and tonumber(perform_in) <= tonumber(now)
  return is_known and tonumber(score) <= tonumber(now) and score or ''
end

-- Returns {id, number of payloads, time of the first one or '', ...}, the largest number first.
local function busiest(now)
  local size, rank, found = redis.call('ZCARD', spill_order), 0, {}
  local step = math.ceil(size / LOOKS)
  while rank < size do
    local id = string.match(redis.call('ZRANGE', spill_order, rank, rank)[1], '^[^%z]*')
    local from, to = members_below('(' .. id .. '\0'), members_below(lex_max(id))
    found[#found + 1] = {id = id, count = to - from, rank = from}
    rank = math.max(to, rank + step)
  end
  table.sort(found, function(one, other)
    return one.count > other.count
  end)
  local reply = {}
  for i = 1, math.min(BUSIEST, #found) do
    local one = found[i]
    reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = one.id, one.count, waits_since(one.id, one.rank, now)
  end
  return reply
end
