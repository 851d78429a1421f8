-- Takes the last items of a payload set, those with the highest scores, so that what is taken later is added before them
-- wherever they go.
--
-- KEYS:
-- USES: payload_set_read

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
