-- Reads the counts of a shard, and its lease.
--
-- ROLE: reader
-- KEYS: lease meta @waiting! jobs spill_order failed claimed dead
-- ARGV:
-- USES: time payloads waiting.index waiting.next_due waiting.holds
-- Returns: {now, next_due or '', smallest perform_in of all waiting jobs or '', since when the first of the ids
--   that deaths hold is held or '', {owner, epoch, counter}, busiest ids (see `busiest`), counts in the
--   order of COUNTS in rules/views.py}.
-- Cost: O(log n + jobs in processing).
-- The ids with the most waiting payloads, among those whose payloads are in `spill_order`: all of more than about 1 KiB.
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

local now = seconds(now_us())
local paused_count = redis.call('ZCARD', due_paused)
local counters = redis.call('HMGET', meta, 'processed', 'failed', 'merged', 'dead', 'dropped', 'extra')

-- The number of a counter; 0 for foreign data.
local function counter(text)
  return tonumber(text or 0) or 0
end

local function oldest()
  local oldest
  for _, index in ipairs({due, due_prioritized, due_paused, moving}) do
    local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
    if first and (not oldest or tonumber(first) < tonumber(oldest)) then
      oldest = first
    end
  end
  return oldest or ''
end

-- Number of waiting payloads (lib/meta.lua), at least one of each job: foreign data may say less.
local function payloads()
  local records = redis.call('HLEN', jobs)
  return math.max(records, records + redis.call('ZCARD', spill_order) + counter(counters[6]))
end

-- Since when the first of the held ids is held: those that are paused, too, have smaller scores.
local function held_since()
  local first
  for _, bounds in ipairs({{'(0', '-' .. BOTH}, {'(-' .. BOTH, '-inf'}}) do
    local found = redis.call('ZREVRANGEBYSCORE', paused, bounds[1], bounds[2], 'WITHSCORES', 'LIMIT', 0, 1)
    local held_at = read_pause(found[2])
    first = held_at and math.min(first or held_at, held_at) or first
  end
  return first and string.format('%.17g', first) or ''
end

local waits = redis.call('ZCARD', due) + redis.call('ZCARD', due_prioritized) + paused_count + redis.call('ZCARD', moving)
return {
  now,
  next_due(),
  oldest(),
  any_paused and held_since() or '',
  redis.call('HMGET', lease, 'owner', 'epoch', 'counter'),
  busiest(now),
  waits,
  redis.call('ZCARD', failed),
  redis.call('ZCARD', dead),
  redis.call('ZCARD', claimed),
  counter(counters[1]),
  counter(counters[2]),
  counter(counters[3]),
  counter(counters[4]),
  paused_count,
  any_paused and redis.call('ZCOUNT', paused, 0, '+inf') + redis.call('ZCOUNT', paused, '-inf', '(-' .. BOTH) or 0,
  shard_paused and 1 or 0,
  counter(counters[5]),
  redis.call('ZCOUNT', due, '-inf', now) + redis.call('ZCOUNT', due_prioritized, '-inf', now),
  any_paused and redis.call('ZCOUNT', paused, '-inf', '(0') or 0,
  payloads(),
}
