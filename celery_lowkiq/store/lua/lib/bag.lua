-- The part of a bag that changes it; see bag_read. Adding needs KEY meta and ARGV merge.
local PACKED_BYTES = 1024
local ARRIVAL_ZERO = 140737488355328

local function hex(high, low)
  return string.format('%08x%08x', high, low)
end

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
    return hex(2147483647 - high, 4294967295 - low)
  end
  return hex(high + 2147483648, low)
end

local function pack_items(items)
  local parts = {}
  for i, item in ipairs(items) do
    parts[i] = item[1] .. ' ' .. #item[2] .. item[4] .. ' ' .. item[2]
  end
  return table.concat(parts)
end

-- Does `new` replace an equal payload with score `old`? A tie keeps the one that arrived first.
local function replaces(new, old, older)
  if new == old then
    return older
  end
  return (merge == 'max') == (new > old)
end

-- The flag of a payload that two calls brought.
local function joined(one, other)
  return one == other and one or 'r'
end

local function insert(items, item, older)
  for i, other in ipairs(items) do
    if other[2] == item[2] then
      local flag = joined(item[4], other[4])
      if not replaces(item[3], other[3], older) then
        other[4] = flag
        return
      end
      item = {item[1], item[2], item[3], flag}
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

local function arrival(older)
  if older then
    return ARRIVAL_ZERO + redis.call('HINCRBY', meta, 'front', -1)
  end
  return ARRIVAL_ZERO + redis.call('HINCRBY', meta, 'back', 1)
end

local function spill_item(bag, id, item, older)
  local field = id .. '\0' .. item[2]
  local place = redis.call('HGET', bag.spill, field)
  local position, score, flag = nil, item[1], item[4]
  if place then
    local known, known_flag = string.match(string.sub(place, 29, -2), '^(.-)([rR]?)$')
    local known_score = tonumber(known)
    if known_score then
      flag = joined(flag, known_flag)
    end
    if known_score and not replaces(item[3], known_score, older) then
      if flag == known_flag then
        return
      end
      position, score = string.sub(place, 1, 28), known
    end
    redis.call('ZREM', bag.order, id .. '\0' .. place .. item[2])
  end
  position = position or sortable(item[3]) .. string.format('%012x', arrival(older))
  place = position .. score .. flag .. '\0'
  redis.call('HSET', bag.spill, field, place)
  redis.call('ZADD', bag.order, 0, id .. '\0' .. place .. item[2])
end

-- Unites items into the bag of an id. `older` items arrived before those in the bag, and are walked from
-- the last to the first, so that each comes to lie before its equals.
local function bag_add(bag, id, items, older)
  local record = redis.call('HGET', bag.records, id)
  local first, last, step = 1, #items, 1
  if older then
    first, last, step = #items, 1, -1
  end
  if record ~= SPILLED then
    local packed = record and unpack_items(record) or {}
    for i = first, last, step do
      insert(packed, items[i], older)
    end
    record = pack_items(packed)
    if #packed == 1 or #record <= PACKED_BYTES then
      redis.call('HSET', bag.records, id, record)
      return
    end
    redis.call('HSET', bag.records, id, SPILLED)
    items, first, last, step, older = packed, 1, #packed, 1, false
  end
  for i = first, last, step do
    spill_item(bag, id, items[i], older)
  end
end

local function take_packed(bag, id, record, max_count, max_bytes, lowest)
  local items, rest = unpack_items(record), {}
  while lowest and items[1] and items[1][3] < lowest do
    rest[#rest + 1] = table.remove(items, 1)
  end
  local fit = fitting(items, 0, 0, max_count, max_bytes)
  local cut = fit < #items
  for i = fit + 1, #items do
    rest[#rest + 1] = items[i]
    items[i] = nil
  end
  if #rest == 0 then
    redis.call('HDEL', bag.records, id)
  else
    redis.call('HSET', bag.records, id, pack_items(rest))
  end
  return items, #rest > 0, cut
end

local function take_spilled(bag, id, max_count, max_bytes, lowest)
  local taken, bytes = {}, 0
  local from = lex_min(id) .. (lowest and sortable(lowest) or '')
  while true do
    local items, members = spilled_step(bag, id, from)
    local gone, fields, fit = {}, {}, 0
    fit, bytes = fitting(items, #taken, bytes, max_count, max_bytes)
    for i = 1, fit do
      gone[i], fields[i] = members[i], id .. '\0' .. items[i][2]
      taken[#taken + 1] = items[i]
    end
    if fit > 0 then
      redis.call('ZREM', bag.order, unpack(gone))
      redis.call('HDEL', bag.spill, unpack(fields))
    end
    if #members == 0 then
      local more = lowest and redis.call('ZLEXCOUNT', bag.order, lex_min(id), lex_max(id)) > 0
      if not more then
        redis.call('HDEL', bag.records, id)
      end
      return taken, more, false
    end
    if fit < #members then
      return taken, true, true
    end
  end
end

-- Removes items from the bag, lowest scores first, none below `lowest` if that is given. Returns them, whether the bag
-- keeps any, and whether it keeps some that were to be taken.
local function bag_take(bag, id, max_count, max_bytes, lowest)
  local record = redis.call('HGET', bag.records, id)
  if not record then
    return {}, false, false
  elseif record == SPILLED then
    return take_spilled(bag, id, max_count, max_bytes, lowest)
  end
  return take_packed(bag, id, record, max_count, max_bytes, lowest)
end
