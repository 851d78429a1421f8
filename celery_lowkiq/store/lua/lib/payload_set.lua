-- Changes payload sets. Their format is described in payload_set_read.lua.
--
-- KEYS: meta
-- ARGV: merge
-- USES: payload_set_read time
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

local function binds_score(signature)
  return string.byte(signature) == 83
end

-- Returns true when score `new` replaces score `old` of an equal payload. Of equal scores, the first arrival stays. A signed
-- score stays before one of a call that is not signed.
local function replaces(new, old, older, new_signature, old_signature)
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

-- The signature of a payload that two calls have, of which the one with signature `kept` keeps its score. A signature that
-- binds no score may be the other call's: if it is the only one, or if that call came `later` and so may have a newer key.
local function joined_signature(kept, other, later)
  if other ~= '' and not binds_score(kept) and not binds_score(other) and (kept == '' or later) then
    return other
  end
  return kept
end

-- Of sets that are one record, and of spilled ones.
local packed, spilled = {}, {}

function packed.insert(items, item, older)
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
function spilled.arrivals(count, older)
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
function spilled.entry(item, place, older)
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
function spilled.add_step(set, id, items, older)
  local fields, entries, gone, new, grown = {}, {}, {}, 0, 0
  for i, item in ipairs(items) do
    fields[i] = id .. '\0' .. item[2]
  end
  local places = redis.call('HMGET', set.spill, unpack(fields))
  for i, item in ipairs(items) do
    local place = places[i]
    local entry = spilled.entry(item, place, older)
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
    number, step = spilled.arrivals(new, older)
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

function spilled.add(set, id, items, older)
  local part, known, grown = {}, {}, 0
  for _, item in ipairs(items) do
    if #part == SPILL_STEP or known[item[2]] then
      grown = grown + spilled.add_step(set, id, part, older)
      part, known = {}, {}
    end
    part[#part + 1], known[item[2]] = item, true
  end
  return grown + (#part > 0 and spilled.add_step(set, id, part, older) or 0)
end

-- Adds items to the set of an id. `older` items arrived before those in the set: they are added in reverse, each before items
-- with an equal score. `record`: that of the set, if the caller has read it. Returns the number of payloads that it did not have.
local function set_add(set, id, items, older, record)
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
      packed.insert(merged, item, older)
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
    spilled.add(set, id, merged, false)
    items = many and items or {}
  end
  return grown + spilled.add(set, id, items, older)
end

-- Items with scores below `lowest`, and the others.
function packed.parted(items, lowest)
  local below, others = {}, {}
  for _, item in ipairs(items) do
    local part = item[3] < lowest and below or others
    part[#part + 1] = item
  end
  return below, others
end

function packed.take(set, id, record, max_count, max_bytes, lowest)
  local items, rest = unpack_items(record), {}
  local before = #items
  if lowest then
    rest, items = packed.parted(items, lowest)
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

function spilled.take(set, id, max_count, max_bytes, lowest)
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
local function set_take(set, id, max_count, max_bytes, lowest, record)
  record = record or redis.call('HGET', set.records, id)
  if not record then
    return {}, false, false, 0
  elseif record == SPILLED then
    return spilled.take(set, id, max_count, max_bytes, lowest)
  end
  return packed.take(set, id, record, max_count, max_bytes, lowest)
end
