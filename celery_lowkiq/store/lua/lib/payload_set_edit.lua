-- Replaces or deletes one payload of a payload set. The signature of its replacement is `signatures`, one for any score and one
-- for the score `signed_score`, or ''.
--
-- KEYS:
-- ARGV: signatures signed_score
-- USES: payload_set

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
  -- As a push: equal scores keep their order, equal payloads are merged.
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
    spilled.add_step(set, id, {{score, other, tonumber(score), flag, signature}}, false)
    return 1
  end
  place = string.sub(place, 1, 28) .. score .. flag .. signature .. '\0'
  redis.call('HSET', set.spill, id .. '\0' .. other, place)
  redis.call('ZADD', set.spill_order, 0, id .. '\0' .. place .. other)
  return 1
end

-- Replaces a payload by `other`, which keeps the score, or deletes it (nil). Returns 1, or 0 when there is no such payload; and
-- true when the set has none any more, of which the record is removed.
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
