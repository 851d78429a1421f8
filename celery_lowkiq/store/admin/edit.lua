-- Deletes one payload of a waiting job, or replaces it by another with the same score. A job without payloads is deleted.
--
-- KEYS: meta @waiting jobs spill spill_order failed errors processing dead tries crash_marks calls
-- POLICY KEYS: debounce? early_due?
-- ARGV: merge policy id payload replaced other digest other_digest
--   replaced: '1' replaces the payload by `other`; if the job already has `other`, the two are merged (rule 2)
--   digest, other_digest: of both payloads, when the calls of the payload become calls of `other`; '' when they end
-- USES: payload_set waiting policy_per_run forget_history orphans
-- Returns: {1 or 0 when the job has no such payload, orphans (see lib/orphans.lua)}.
-- Cost: O(log n), or the length of a packed record. Repeated: no effect, since the payload is gone.
local keeps_calls = digest ~= ''

local function packed(record)
  local items, found = unpack_items(record), false
  for i, item in ipairs(items) do
    if item[2] == payload then
      found = i
    end
  end
  if not found then
    return 0
  end
  if replaced == '1' then
    items[found] = {items[found][1], other, items[found][3], keeps_calls and items[found][4] or ''}
  else
    table.remove(items, found)
  end
  redis.call('HDEL', jobs, id)
  -- As a push: equal scores keep their order, equal payloads are merged.
  set_add(waiting, id, items, false)
  return 1
end

local function spilled()
  local field = id .. '\0' .. payload
  local place = redis.call('HGET', spill, field)
  if not place then
    return 0
  end
  redis.call('HDEL', spill, field)
  redis.call('ZREM', spill_order, id .. '\0' .. place .. payload)
  if replaced ~= '1' then
    return 1
  end
  local score, flag = string.match(string.sub(place, 29, -2), '^(.-)([rR]?)$')
  flag = keeps_calls and flag or ''
  if redis.call('HEXISTS', spill, id .. '\0' .. other) == 1 then
    spill_step(waiting, id, {{score, other, tonumber(score), flag}}, false)
    return 1
  end
  place = string.sub(place, 1, 28) .. score .. flag .. '\0'
  redis.call('HSET', spill, id .. '\0' .. other, place)
  redis.call('ZADD', spill_order, 0, id .. '\0' .. place .. other)
  return 1
end

-- The call records of the payload become those of `other`.
local function move_calls()
  local head = id .. '\0' .. digest
  for _, member in ipairs(redis.call('ZRANGEBYLEX', calls, '[' .. head, '(' .. head .. '\255')) do
    redis.call('ZREM', calls, member)
    redis.call('ZADD', calls, 0, id .. '\0' .. other_digest .. string.sub(member, #head + 1))
  end
end

local function is_empty(record)
  if record == SPILLED then
    return redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) == 0
  end
  return redis.call('HGET', jobs, id) == ''
end

local record = redis.call('HGET', jobs, id)
local changed = 0
if record then
  local failed_one = failed_payload(id)
  changed = record == SPILLED and spilled() or record ~= SPILLED and packed(record)
  if is_empty(record) then
    redis.call('HDEL', jobs, id)
    remove_waiting(id)
    forget_history(id)
  else
    forget_if_passed(id, failed_one)
  end
end
local orphans = {}
if keeps_calls then
  if changed == 1 then
    move_calls()
  end
  return {changed, orphans}
end
add_orphan(orphans, id, redis.call('HGET', meta, 'last_call'))
return {changed, orphans}
