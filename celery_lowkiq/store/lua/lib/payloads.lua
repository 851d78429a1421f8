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

local spilled_step

do
  -- Number of payloads that this script has read of a spilled set, and bytes of the largest one, by id.
  local read_before = {}

  -- The next items of a spilled set from the lex position `from`, their members, and the position behind them, or nil at the end
  -- of the set. At least one item, and at most STEP. A size is known only when a payload is read: so at most three times as many
  -- are read as before, and as many of the largest size so far as fit into STEP_BYTES.
  function spilled_step(set, id, from)
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
end

-- PART: change
-- Changes payload sets.
--
-- KEYS: meta
-- ARGV: merge
-- USES: payloads time
local binds_score, replaces, spill_step, spill_items, set_add, set_take

do
  -- Maximum number of items inserted into a packed record because each insertion reads all of it; more items spill the set.
  local INSERTED = 64

  -- The bits of an IEEE double, turned so that text order is number order.
  local function sortable(number)
    local negative = number < 0
    local fraction, exponent = math.frexp(math.abs(number))
    local mantissa
    if fraction == 0 then
      exponent, mantissa = 0, 0
    elseif exponent < -1021 then
      exponent, mantissa = 0, math.ldexp(fraction, exponent + 1074)
    else
      exponent, mantissa = exponent + 1022, (fraction * 2 - 1) * 4503599627370496
    end
    local high = exponent * 1048576 + math.floor(mantissa / 4294967296)
    local low = mantissa % 4294967296
    if negative then
      high, low = 2147483647 - high, 4294967295 - low
    else
      high = high + 2147483648
    end
    return string.format('%08x%08x', high, low)
  end

  function binds_score(signature)
    return string.byte(signature) == 83
  end

  -- Returns true when score `new` replaces score `old` of an equal payload. Of equal scores, the first arrival stays. A signed
  -- score stays before one of a call that is not signed.
  function replaces(new, old, older, new_signature, old_signature)
    if new_signature == '' and binds_score(old_signature) then
      return false
    elseif old_signature == '' and binds_score(new_signature) then
      return true
    elseif new == old then
      return older
    end
    return (merge == 'max') == (new > old)
  end

  -- The flag of a payload that two calls have.
  local function joined(one, other)
    return one == other and one or 'r'
  end

  -- Returns the signature of a payload that two calls have. The call with signature `kept` keeps its score. Where neither
  -- signature binds a score, the other call's is taken if it is the only one, or if that call came `later`: it may have a
  -- newer key.
  local function joined_signature(kept, other, later)
    if other ~= '' and not binds_score(kept) and not binds_score(other) and (kept == '' or later) then
      return other
    end
    return kept
  end

  local function insert(items, item, older)
    for i, other in ipairs(items) do
      if other[2] == item[2] then
        local flag = joined(item[4], other[4])
        if not replaces(item[3], other[3], older, item[5], other[5]) then
          other[4], other[5] = flag, joined_signature(other[5], item[5], not older)
          return
        end
        item = {item[1], item[2], item[3], flag, joined_signature(item[5], other[5], older)}
        table.remove(items, i)
        break
      end
    end
    local at = #items + 1
    while at > 1 and (items[at - 1][3] > item[3] or older and items[at - 1][3] == item[3]) do
      at = at - 1
    end
    table.insert(items, at, item)
  end

  -- Reserves `count` consecutive arrival numbers: growing, or falling for `older` items. Returns the number before the first, and
  -- the step. When meta was lost, they start at the clock's ms, beyond the used ones, until repair_meta finds the largest.
  local function arrivals(count, older)
    local side, step = 'last_arrival', 1
    if older then
      side, step = 'first_arrival', -1
    end
    local number = redis.call('HINCRBY', meta, side, step * count)
    if number == step * count and redis.call('HEXISTS', meta, 'shards') == 0 then
      number = redis.call('HINCRBY', meta, side, step * math.floor(now_us() / 1000))
    end
    return ARRIVAL_ZERO + number - step * count, step
  end

  -- Items of a spilled set in one command.
  local SPILL_STEP = 250

  -- The entry of an item in a spilled set: {item, score, flag and signature, kept position or nil}; nil when nothing changes.
  -- `place` is that of the payload in the set, or false.
  local function entry_of(item, place, older)
    local known, known_flag, known_signature = read_place(string.sub(place or '', 29))
    local known_score = tonumber(known)
    if not known_score then
      return {item, item[1], item[4] .. item[5]}
    end
    local flag = joined(item[4], known_flag)
    if replaces(item[3], known_score, older, item[5], known_signature) then
      return {item, item[1], flag .. joined_signature(item[5], known_signature, older)}
    end
    flag = flag .. joined_signature(known_signature, item[5], not older)
    return flag ~= known_flag .. known_signature and {item, known, flag, string.sub(place, 1, 28)} or nil
  end

  -- Adds items with different payloads to a spilled set. Returns the number of payloads that it did not have.
  function spill_step(set, id, items, older)
    local fields, entries, gone, new, grown = {}, {}, {}, 0, 0
    for i, item in ipairs(items) do
      fields[i] = id .. '\0' .. item[2]
    end
    local places = redis.call('HMGET', set.spill, unpack(fields))
    for i, item in ipairs(items) do
      local place = places[i]
      local entry = entry_of(item, place, older)
      if entry and place then
        gone[#gone + 1] = id .. '\0' .. place .. item[2]
      end
      new, grown = new + (entry and not entry[4] and 1 or 0), grown + (place and 0 or 1)
      entries[#entries + 1] = entry
    end
    if #entries == 0 then
      return 0
    end
    local number, step = 0, 0
    if new > 0 then
      number, step = arrivals(new, older)
    end
    local placed, ordered = {}, {}
    for i, entry in ipairs(entries) do
      local payload, position = entry[1][2], entry[4]
      if not position then
        number = number + step
        position = sortable(entry[1][3]) .. string.format('%012x', number)
      end
      local place = position .. entry[2] .. entry[3] .. '\0'
      placed[2 * i - 1], placed[2 * i] = id .. '\0' .. payload, place
      ordered[2 * i - 1], ordered[2 * i] = 0, id .. '\0' .. place .. payload
    end
    if #gone > 0 then
      redis.call('ZREM', set.spill_order, unpack(gone))
    end
    redis.call('HSET', set.spill, unpack(placed))
    redis.call('ZADD', set.spill_order, unpack(ordered))
    return grown
  end

  function spill_items(set, id, items, older)
    local part, known, grown = {}, {}, 0
    for _, item in ipairs(items) do
      if #part == SPILL_STEP or known[item[2]] then
        grown = grown + spill_step(set, id, part, older)
        part, known = {}, {}
      end
      part[#part + 1], known[item[2]] = item, true
    end
    return grown + (#part > 0 and spill_step(set, id, part, older) or 0)
  end

  -- Adds items to the set of an id. `older` items arrived before those in the set: they are added in reverse, each before items
  -- with an equal score. `record`: that of the set, if the caller has read it. Returns the number of payloads that it did not have.
  function set_add(set, id, items, older, record)
    record = record or redis.call('HGET', set.records, id)
    local grown = 0
    if older and #items > 1 then
      items = reversed(items)
    end
    if record ~= SPILLED then
      local merged = record and unpack_items(record) or {}
      local before = record and #merged or 1
      grown = -#merged
      local many = #items > INSERTED
      for _, item in ipairs(many and {} or items) do
        insert(merged, item, older)
      end
      grown = grown + #merged
      record = not many and pack_items(merged)
      if record and (#merged == 1 or #record <= PACKED_BYTES) then
        redis.call('HSET', set.records, id, record)
        add_extra(set, #merged - before)
        return grown
      end
      redis.call('HSET', set.records, id, SPILLED)
      add_extra(set, -before)
      spill_items(set, id, merged, false)
      items = many and items or {}
    end
    return grown + spill_items(set, id, items, older)
  end

  -- Items with scores below `lowest`, and the others.
  local function parted(items, lowest)
    local below, others = {}, {}
    for _, item in ipairs(items) do
      local part = item[3] < lowest and below or others
      part[#part + 1] = item
    end
    return below, others
  end

  local function take_packed(set, id, record, max_count, max_bytes, lowest)
    local items, rest = unpack_items(record), {}
    local before = #items
    if lowest then
      rest, items = parted(items, lowest)
    end
    local fit, bytes = fitting(items, 0, 0, max_count, max_bytes)
    local cut = fit < #items
    for i = fit + 1, #items do
      rest[#rest + 1] = items[i]
      items[i] = nil
    end
    if #rest == 0 then
      redis.call('HDEL', set.records, id)
    else
      redis.call('HSET', set.records, id, pack_items(rest))
    end
    add_extra(set, math.max(#rest, 1) - before)
    return items, #rest > 0, cut, bytes
  end

  local function take_spilled(set, id, max_count, max_bytes, lowest)
    local taken, bytes = {}, 0
    local from = lex_min(id) .. (lowest and sortable(lowest) or '')
    while true do
      local items, members = spilled_step(set, id, from)
      local gone, fields, fit = {}, {}, 0
      fit, bytes = fitting(items, #taken, bytes, max_count, max_bytes)
      for i = 1, fit do
        gone[i], fields[i] = members[i], id .. '\0' .. items[i][2]
        taken[#taken + 1] = items[i]
      end
      if fit > 0 then
        redis.call('ZREM', set.spill_order, unpack(gone))
        redis.call('HDEL', set.spill, unpack(fields))
      end
      if #members == 0 then
        local more = lowest and redis.call('ZLEXCOUNT', set.spill_order, lex_min(id), lex_max(id)) > 0 or false
        -- The mark of a set whose payloads were lost stays: the repair counts it.
        if #taken > 0 and not more then
          redis.call('HDEL', set.records, id)
          add_extra(set, 1)
        end
        return taken, more, false, bytes
      elseif fit < #members then
        return taken, true, true, bytes
      end
    end
  end

  -- Takes items from the set, smallest scores first, from score `lowest` on; `record`: if the caller has read it. Returns them, whether the set has other items,
  -- whether a limit has left some of these, and at least the bytes of the payloads.
  function set_take(set, id, max_count, max_bytes, lowest, record)
    record = record or redis.call('HGET', set.records, id)
    if not record then
      return {}, false, false, 0
    elseif record == SPILLED then
      return take_spilled(set, id, max_count, max_bytes, lowest)
    end
    return take_packed(set, id, record, max_count, max_bytes, lowest)
  end
end

-- PART: edit
-- Replaces or deletes one payload of a payload set. The signature of its replacement is `signatures`, one for any score and one
-- for the score `signed_score`, or ''.
--
-- KEYS:
-- ARGV: signatures signed_score
-- USES: payloads.change

-- The signature of a replacement: one that binds the score, if that of the payload did so.
local function signature_instead(signature, score)
  local from = binds_score(signature) and score == signed_score and 25 or 1
  return string.sub(signatures, from, from + 23)
end

local function edit_packed(set, id, record, payload, other, keeps_flag)
  local items, found = unpack_items(record), false
  local before = #items
  for i, item in ipairs(items) do
    if item[2] == payload then
      found = i
    end
  end
  if not found then
    return 0
  end
  if other then
    local item = items[found]
    items[found] = {item[1], other, item[3], keeps_flag and item[4] or '', signature_instead(item[5], item[1])}
  else
    table.remove(items, found)
  end
  redis.call('HDEL', set.records, id)
  add_extra(set, 1 - before)
  -- Like a push: equal scores keep their order, equal payloads are merged.
  set_add(set, id, items, false)
  return 1
end

local function edit_spilled(set, id, payload, other, keeps_flag)
  local field = id .. '\0' .. payload
  local place = redis.call('HGET', set.spill, field)
  if not place then
    return 0
  end
  redis.call('HDEL', set.spill, field)
  redis.call('ZREM', set.spill_order, id .. '\0' .. place .. payload)
  if not other then
    return 1
  end
  local score, flag, signature = read_place(string.sub(place, 29))
  flag, signature = keeps_flag and flag or '', signature_instead(signature, score)
  if redis.call('HEXISTS', set.spill, id .. '\0' .. other) == 1 then
    spill_step(set, id, {{score, other, tonumber(score), flag, signature}}, false)
    return 1
  end
  place = string.sub(place, 1, 28) .. score .. flag .. signature .. '\0'
  redis.call('HSET', set.spill, id .. '\0' .. other, place)
  redis.call('ZADD', set.spill_order, 0, id .. '\0' .. place .. other)
  return 1
end

-- Replaces a payload by `other`, which keeps the score, or deletes it (nil). Returns 1, or 0 when there is no such payload; and
-- true when the set is empty: its record is removed.
local function set_edit(set, id, payload, other, keeps_flag)
  local record = redis.call('HGET', set.records, id)
  if not record then
    return 0, false
  end
  local changed
  if record == SPILLED then
    changed = edit_spilled(set, id, payload, other, keeps_flag)
  else
    changed = edit_packed(set, id, record, payload, other, keeps_flag)
  end
  local is_empty = set_size(set, id) == 0
  if is_empty then
    redis.call('HDEL', set.records, id)
    add_extra(set, 1)
  end
  return changed, is_empty
end

-- PART: last
-- Takes the last items of a payload set, those with the highest scores, so that what is taken later is added before them
-- wherever they go.
--
-- KEYS:
-- USES: payloads

-- Returns the items by ascending score, their record, and whether the set has others. A packed record is taken whole.
local function set_take_last(set, id, max_count, max_bytes)
  local record = redis.call('HGET', set.records, id)
  if not record then
    return 0, nil, false
  elseif record ~= SPILLED then
    local count = #unpack_items(record)
    redis.call('HDEL', set.records, id)
    add_extra(set, 1 - count)
    return count, record, false
  end
  local taken, bytes, members = {}, 0, nil
  repeat
    members = redis.call('ZREVRANGEBYLEX', set.spill_order, lex_max(id), lex_min(id), 'LIMIT', 0, STEP)
    local items, gone, fields = {}, {}, {}
    for i, member in ipairs(members) do
      items[i] = member_item(id, member)
    end
    local fit
    fit, bytes = fitting(items, #taken, bytes, max_count, max_bytes)
    for i = 1, fit do
      taken[#taken + 1] = items[i]
      gone[i], fields[i] = members[i], id .. '\0' .. items[i][2]
    end
    if fit > 0 then
      redis.call('ZREM', set.spill_order, unpack(gone))
      redis.call('HDEL', set.spill, unpack(fields))
    end
  until fit < STEP
  local more = redis.call('ZLEXCOUNT', set.spill_order, lex_min(id), lex_max(id)) > 0
  if not more then
    redis.call('HDEL', set.records, id)
    add_extra(set, 1)
  end
  return #taken, pack_items(reversed(taken)), more
end
