-- Reads payload sets: the payloads of one id, by ascending score.
--
-- A small set is one packed record, '<score> <length><flag><signature> <payload>' repeated, under the id in hash `records`. A
-- payload without a length reaches to the end.
-- A set of several payloads above PACKED_BYTES is spilled: its record is the mark 'S', and each payload has an entry
-- in hash `spill` (id \0 payload -> place) and in `spill_order`, a sorted set of equal scores whose members
-- (id \0 place payload) sort by id, score and arrival. A place is 16 hex digits of score, 12 hex digits of arrival,
-- the score, the flag, the signature, \0. Ids have no control characters.
-- The flag tells which calls of a payload have records (push.lua): '' none, 'r' some, 'R' all.
-- The signature (rules/signatures.py) is '', or a text that begins with 'S' when it binds the score, else with 's'.
--
-- All sets together have as many payloads as there are records, and members of `spill_order`, and their extras: that of a packed
-- record is its number of payloads beyond one, that of the mark 'S' is -1. So a job with one payload needs no counter.
local SPILLED = 'S'
local PACKED_BYTES = 1024
-- Maximum number of payloads that a step of a spilled set reads, and of bytes; a payload may be larger.
local STEP = 16
local STEP_BYTES = 262144
-- Arrivals are stored above this number: negative ones sort before it, as hex digits.
local ARRIVAL_ZERO = 140737488355328

-- tonumber() accepts texts that Redis and Python do not.
local function is_number(text)
  local number = string.find(text, '^[-+.e%d]+$') and tonumber(text)
  return number and math.abs(number) < math.huge or string.find(text, '^-?inf$')
end

local function is_signature(text)
  return text == '' or string.find(text, '^[sS]')
end

-- The score, the flag and the signature of a place in a spilled set, or of its end.
local function read_place(text)
  local score, flag, signature, rest = string.match(text, '^([^rRsS%z]*)([rR]?)([^%z]*)(.*)$')
  if rest == '' or rest == '\0' then
    return score, flag, signature
  end
end

-- An item is {score as text, payload, score as number, flag, signature}. Unreadable bytes become a payload, which a worker
-- cannot decode and buries.
-- The longest record of ours has 1,000 payloads of together 1 MiB, or one more. A longer one is foreign: beyond 4 MiB it is not
-- searched for spaces, and what follows 2,048 payloads is one, or Redis would stop for many seconds.
-- The items begin at `at`, or at the first byte.
local function unpack_items(record, at)
  local items = {}
  at = at or 1
  local is_long = #record > 4194304
  while at <= #record do
    local _, stop, score, word
    if is_long then
      _, stop, score, word = string.find(string.sub(record, at, at + 1024), '^(%S+) (%S*) ')
      stop = stop and stop + at - 1
    else
      _, stop, score, word = string.find(record, '^(%S+) (%S*) ', at)
    end
    local length, flag, signature = string.match(word or '', '^(%d*)([rR]?)(.*)$')
    if not stop or not is_number(score) or signature ~= '' and not is_signature(signature) or #items == 2048 then
      items[#items + 1] = {'0', string.sub(record, at), 0, '', ''}
      break
    end
    local last = length == '' and #record or stop + length
    items[#items + 1] = {score, string.sub(record, stop + 1, last), tonumber(score), flag, signature}
    at = last + 1
  end
  return items
end

-- Returns the record of items, behind `head` if there is one.
local function pack_items(items, head)
  local parts = {head or ''}
  for _, item in ipairs(items) do
    if #item[2] > STEP_BYTES then
      -- One copy less.
      parts[#parts + 1] = item[1] .. ' ' .. #item[2] .. item[4] .. item[5] .. ' '
      parts[#parts + 1] = item[2]
    else
      parts[#parts + 1] = item[1] .. ' ' .. #item[2] .. item[4] .. item[5] .. ' ' .. item[2]
    end
  end
  return table.concat(parts)
end

local function reversed(items)
  local found = {}
  for i = #items, 1, -1 do
    found[#found + 1] = items[i]
  end
  return found
end

-- Adds up how a script changes the extras of a set's records.
local function add_extra(set, change)
  set.extra = (set.extra or 0) + change
end

local function lex_min(id)
  return '[' .. id .. '\0'
end

local function lex_max(id)
  return '(' .. id .. '\1'
end

-- Number of payloads of a set.
local function set_size(set, id)
  local record = redis.call('HGET', set.records, id)
  if record == SPILLED then
    return redis.call('ZLEXCOUNT', set.spill_order, lex_min(id), lex_max(id))
  end
  return record and #unpack_items(record) or 0
end

local function member_item(id, member)
  local place = #id + 2
  local stop = string.find(member, '\0', place, true)
  if not stop then
    return {'0', string.sub(member, place), 0, '', ''}
  end
  local score, flag, signature = read_place(string.sub(member, place + 28, stop - 1))
  if not (score and is_number(score) and is_signature(signature)) then
    return {'0', string.sub(member, place), 0, '', ''}
  end
  return {score, string.sub(member, stop + 1), tonumber(score), flag, signature}
end

-- Number of items, from the first, within max_count and max_bytes; at least one when none was taken before. And their bytes.
local function fitting(items, taken, bytes, max_count, max_bytes)
  local fit = 0
  for _, item in ipairs(items) do
    bytes = bytes + #item[2]
    if taken + fit >= max_count or (taken + fit > 0 and bytes > max_bytes) then
      break
    end
    fit = fit + 1
  end
  return fit, bytes
end

-- Number of payloads that this script has read of a spilled set, and bytes of the largest one, by id.
local read_before = {}

-- The next items of a spilled set from the lex position `from`, their members, and the position behind them, or nil at the end
-- of the set. At least one item, and at most STEP. A size is known only when a payload is read: so at most three times as many
-- are read as before, and as many of the largest size so far as fit into STEP_BYTES.
local function spilled_step(set, id, from)
  local items, members, size = {}, {}, 0
  local before = read_before[id] or {count = 0, largest = 1}
  read_before[id] = before
  repeat
    local count = math.min(3 * before.count, STEP - #members, math.floor((STEP_BYTES - size) / before.largest))
    count = math.max(1, count)
    local part = redis.call('ZRANGEBYLEX', set.spill_order, from, lex_max(id), 'LIMIT', 0, count)
    for _, member in ipairs(part) do
      local item = member_item(id, member)
      members[#members + 1], items[#items + 1] = member, item
      size, before.largest = size + #item[2], math.max(before.largest, #item[2])
    end
    if #part < count then
      return items, members, nil
    end
    before.count, from = before.count + count, '(' .. part[count]
  until #members == STEP or size + before.largest > STEP_BYTES
  return items, members, from
end
