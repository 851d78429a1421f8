-- Policy keep: a waiting job keeps the payloads with the highest scores.
--
-- KEYS: meta jobs spill spill_order
-- USES: policies payload_set_read waiting
-- A payload that has call records stays until a claim drops it (place unwanted), so that its calls get a result.
if options.keep then
  -- Number of payloads of a waiting job.
  local function size_of(id)
    return set_size({records = jobs, spill_order = spill_order}, id)
  end

  local function trim_packed(id, record)
    local items, gone, rest = unpack_items(record), {}, {}
    local excess = #items - options.keep
    for i, item in ipairs(items) do
      gone[item[2]] = i <= excess
      if i > excess or item[4] ~= '' then
        rest[#rest + 1] = item
      end
    end
    if #rest < #items then
      redis.call('HSET', jobs, id, pack_items(rest))
      redis.call('HINCRBY', meta, 'dropped', #items - #rest)
      add_extra(waiting, #rest - #items)
    end
    return gone
  end

  local function position_in(id, payload)
    local place = redis.call('HGET', spill, id .. '\0' .. payload)
    local member = place and id .. '\0' .. place .. payload
    return member and redis.call('ZRANK', spill_order, member), member
  end

  -- Earlier calls have dropped what is below the payloads to keep, except recorded ones. Each new item has moved at most one
  -- more below them. STEP more are read, for a task that keeps less than before.
  local function trim_spilled(id, items)
    local gone, dropped, excess = {}, 0, size_of(id) - options.keep
    if excess <= 0 then
      return gone
    end
    local first = redis.call('ZLEXCOUNT', spill_order, '-', '(' .. id .. '\0')
    local stop = first + excess
    local members = redis.call('ZRANGE', spill_order, math.max(first, stop - #items - STEP), stop - 1)
    for _, item in ipairs(items) do
      local rank, member = position_in(id, item[2])
      if rank and rank < stop then
        gone[item[2]] = true
        members[#members + 1] = member
      end
    end
    for _, member in ipairs(members) do
      local item = member_item(id, member)
      if item[4] == '' and redis.call('ZREM', spill_order, member) == 1 then
        redis.call('HDEL', spill, id .. '\0' .. item[2])
        dropped = dropped + 1
      end
    end
    if dropped > 0 then
      redis.call('HINCRBY', meta, 'dropped', dropped)
    end
    return gone
  end

  function hooks.trim(id, items)
    local record = redis.call('HGET', jobs, id) or ''
    local gone = record == SPILLED and trim_spilled(id, items) or trim_packed(id, record)
    for _, item in ipairs(items) do
      if not gone[item[2]] then
        return true
      end
    end
    return false
  end

  function hooks.unwanted(id, items)
    return math.max(0, math.min(#items + size_of(id) - options.keep, #items))
  end
end
