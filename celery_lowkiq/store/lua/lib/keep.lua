-- Needs policy, bag_read, bag and KEY meta. A bag of a task that keeps the payloads with the highest scores.
-- Of a payload with recorded calls somebody hears: it stays until a claim drops it (see drops).

-- How many payloads a bag has.
local function size_of(bag, id)
  local record = redis.call('HGET', bag.records, id)
  if record == SPILLED then
    return redis.call('ZLEXCOUNT', bag.order, lex_min(id), lex_max(id))
  end
  return record and #unpack_items(record) or 0
end

-- Drops what the bag has beyond those to keep, at most a few at a time. Returns the payloads as a set.
local function trim(bag, id)
  local excess = asked.keep and size_of(bag, id) - asked.keep or 0
  if excess <= 0 then
    return {}
  end
  local gone, recorded, count = {}, {}, 0
  for _, item in ipairs((bag_take(bag, id, math.min(excess, STEP), math.huge))) do
    if item[4] == '' then
      gone[item[2]], count = true, count + 1
    else
      recorded[#recorded + 1] = item
    end
  end
  if #recorded > 0 then
    bag_add(bag, id, recorded, true)
  end
  redis.call('HINCRBY', meta, 'dropped', count)
  return gone
end
