-- Needs policy, bag_read, bag and KEY meta. A bag of a task that keeps the payloads with the highest scores.
-- Of a payload with recorded calls somebody hears: it stays until a claim drops it (see drops).
local size_of, trim, any_kept
if asked.keep then
  -- How many payloads a bag has.
  function size_of(bag, id)
    local record = redis.call('HGET', bag.records, id)
    if record == SPILLED then
      return redis.call('ZLEXCOUNT', bag.order, lex_min(id), lex_max(id))
    end
    return record and #unpack_items(record) or 0
  end

  -- Drops what the bag has beyond those to keep, at most so many at a time. Returns these payloads as a set, with those
  -- that a claim will drop.
  function trim(bag, id, most)
    local excess = math.min(size_of(bag, id) - asked.keep, most)
    local gone, recorded, count = {}, {}, 0
    for _, item in ipairs(excess > 0 and bag_take(bag, id, excess, math.huge) or {}) do
      gone[item[2]] = true
      if item[4] == '' then
        count = count + 1
      else
        recorded[#recorded + 1] = item
      end
    end
    if #recorded > 0 then
      bag_add(bag, id, recorded, true)
    end
    if count > 0 then
      redis.call('HINCRBY', meta, 'dropped', count)
    end
    return gone
  end

  -- Trims a bag that items were added to. Whether any of them is kept.
  function any_kept(bag, id, items)
    local gone = trim(bag, id, #items + STEP)
    for _, item in ipairs(items) do
      if not gone[item[2]] then
        return true
      end
    end
    return false
  end
end
