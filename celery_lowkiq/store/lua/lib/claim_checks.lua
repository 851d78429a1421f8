-- What a claim has to do before it takes due jobs: repair lost keys, and return claims that nobody runs.
--
-- KEYS: meta @waiting jobs spill spill_order claimed processing
-- ARGV: open
-- USES: due_index
-- open: numbers of the open claims, or 'any'. A Redis that lost its last writes may have lost other claims, or their settles.

-- Compares the sizes of keys that list the same jobs: they differ only when one of the keys was lost.
-- Returns the name of a key that differs from its others, or nil. `difference`: of the lengths of spill and spill_order, as a
-- repair has accepted it.
local function inconsistent_key(difference)
  if redis.call('HLEN', spill) - redis.call('ZCARD', spill_order) ~= tonumber(difference or 0) then
    return 'spill_order'
  end
  if redis.call('HLEN', processing) ~= redis.call('ZCARD', claimed) then
    return 'processing'
  end
  local elsewhere = redis.call('HLEN', jobs) - redis.call('ZCARD', due)
  local prioritized, paused_count = redis.call('ZCARD', due_prioritized), redis.call('ZCARD', due_paused)
  if elsewhere == 0 and prioritized == 0 and paused_count == 0 and not any_moving then
    return nil
  elseif elsewhere ~= prioritized + paused_count + (any_moving and redis.call('ZCARD', moving) or 0) then
    return 'jobs'
  elseif prioritized ~= redis.call('ZCOUNT', by_priority, '(0', '+inf') then
    return 'by_priority'
  end
  return paused_count > 0 and redis.call('ZCARD', paused) == 0 and 'paused' or nil
end

-- Ids of claims that are not open claims of the owner, in the order of the claims.
local function unacknowledged()
  if open == 'any' or redis.call('ZCARD', claimed) == 0 then
    return {}
  end
  local known, found = {}, {}
  for number in string.gmatch(open, '%d+') do
    known[number] = true
  end
  local ids = redis.call('ZRANGE', claimed, 0, -1, 'WITHSCORES')
  for i = 1, #ids, 2 do
    if not known[ids[i + 1]] then
      found[#found + 1] = ids[i]
    end
  end
  return found
end
