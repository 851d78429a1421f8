-- Policy keep: of a payload set, the payloads with the highest scores stay.
--
-- KEYS: meta
-- USES: policy payload_set
-- A payload with recorded calls stays until a claim drops it (see unwanted_payloads): its calls get a result.
local size_of, any_kept
if options.keep then
  -- How many payloads a set has.
  function size_of(set, id)
    local record = redis.call('HGET', set.records, id)
    if record == SPILLED then
      return redis.call('ZLEXCOUNT', set.spill_order, lex_min(id), lex_max(id))
    end
    return record and #unpack_items(record) or 0
  end

  local function trim_packed(set, id, record)
    local items, gone = unpack_items(record), {}
    local rest = {header = items.header}
    local excess = #items - options.keep
    for i, item in ipairs(items) do
      gone[item[2]] = i <= excess
      if i > excess or item[4] ~= '' then
        rest[#rest + 1] = item
      end
    end
    if #rest < #items then
      redis.call('HSET', set.records, id, pack_items(rest))
      redis.call('HINCRBY', meta, 'dropped', #items - #rest)
    end
    return gone
  end

  local function position_in(set, id, payload)
    local place = redis.call('HGET', set.spill, id .. '\0' .. payload)
    local member = place and id .. '\0' .. place .. payload
    return member and redis.call('ZRANK', set.spill_order, member), member
  end

  -- What lay below those to keep was looked at before: recorded, or dropped. What has come to lie there since is among the
  -- items, or right below those to keep, one for each item. Some more are looked at where a task keeps less than it did.
  local function trim_spilled(set, id, items)
    local gone, dropped, excess = {}, 0, size_of(set, id) - options.keep
    if excess <= 0 then
      return gone
    end
    local first = redis.call('ZLEXCOUNT', set.spill_order, '-', '(' .. id .. '\0')
    local stop = first + excess
    local members = redis.call('ZRANGE', set.spill_order, math.max(first, stop - #items - STEP), stop - 1)
    for _, item in ipairs(items) do
      local rank, member = position_in(set, id, item[2])
      if rank and rank < stop then
        gone[item[2]] = true
        members[#members + 1] = member
      end
    end
    for _, member in ipairs(members) do
      local item = member_item(id, member)
      if item[4] == '' and redis.call('ZREM', set.spill_order, member) == 1 then
        redis.call('HDEL', set.spill, id .. '\0' .. item[2])
        dropped = dropped + 1
      end
    end
    if dropped > 0 then
      redis.call('HINCRBY', meta, 'dropped', dropped)
    end
    return gone
  end

  -- Drops what a set that items were added to has beyond those to keep. Whether any of the items is kept.
  function any_kept(set, id, items)
    local record = redis.call('HGET', set.records, id) or ''
    local gone = record == SPILLED and trim_spilled(set, id, items) or trim_packed(set, id, record)
    for _, item in ipairs(items) do
      if not gone[item[2]] then
        return true
      end
    end
    return false
  end
end
