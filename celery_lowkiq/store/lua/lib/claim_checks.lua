-- What a claim has to do before it takes due jobs: find lost keys, and claims that nobody runs.
--
-- KEYS: meta @waiting jobs spill spill_order claimed processing
-- USES: due_index
-- Keys that list the same jobs have equal sizes: they differ only when one of the keys was lost.

-- Compares the keys of long jobs, whose lengths differ by `difference` since a repair has accepted that, and those of jobs in
-- processing. Returns the name of a key that differs, or nil; then the number of payloads of long jobs, and of jobs in
-- processing.
local function inconsistent_key(difference)
  local ordered, busy = redis.call('ZCARD', spill_order), redis.call('ZCARD', claimed)
  if redis.call('HLEN', spill) - ordered ~= tonumber(difference or 0) then
    return 'spill_order', ordered, busy
  end
  return redis.call('HLEN', processing) ~= busy and 'processing' or nil, ordered, busy
end

-- Compares waiting jobs with the indexes of their times. Returns the name of a key that differs, or nil.
local function inconsistent_index()
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

-- Ids of claims that are not open claims of the owner, in the order of the claims. `open`: numbers of the open claims, or
-- 'any'. A Redis that lost its last writes may have lost other claims, or their settles.
local function unacknowledged(open)
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
