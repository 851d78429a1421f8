-- Makes the two keys of long jobs consistent with each other and with the jobs' records, for waiting or dead jobs.
--
-- ROLE: operator
-- KEYS: meta records spill spill_order
-- ARGV: merge part cursor limit
--   part: spill, then spill_order; limit: approximate number of entries to read
-- USES: payloads payloads.change
-- FLAGS: allow-oom
-- Returns: {cursor, entries rewritten}.
-- Cost: O(limit log n). Repeated: no effect.
local set = {records = records, spill = spill, spill_order = spill_order}
local mended = 0
local parts = {}

-- Writes the place of a payload, unless it reads back as another payload: then taking that would leave this entry, and
-- each repair would bring the payload back.
function parts.spill(field, place)
  local id, payload = string.match(field, '^([^%z]*)%z(.*)$')
  local member = id and id .. '\0' .. place .. payload
  if id and #place > 28 and member_item(id, member)[2] == payload then
    mended = mended + redis.call('ZADD', spill_order, 0, member)
  end
end

local function call_at(place)
  local score, _, signature = read_place(string.sub(place, 29))
  return tonumber(score) or 0, signature or ''
end

-- Keeps that of two places of one payload which rule 2 selects.
local function settle_place(id, payload, place)
  local field = id .. '\0' .. payload
  local stored = redis.call('HGET', spill, field)
  if stored == place then
    return
  end
  local loser = stored
  local score, signature = call_at(place)
  local stored_score, stored_signature = call_at(stored or '')
  if stored and not replaces(score, stored_score, place < stored, signature, stored_signature) then
    loser = place
  else
    redis.call('HSET', spill, field, place)
  end
  if loser then
    redis.call('ZREM', spill_order, id .. '\0' .. loser .. payload)
  end
  mended = mended + 1
end

-- A job with payloads in `spill_order` is a long job, even if payloads were pushed after its record was lost.
local function make_long(id)
  local record = redis.call('HGET', records, id)
  if record ~= SPILLED then
    redis.call('HSET', records, id, SPILLED)
    set_add(set, id, unpack_items(record or ''), false)
    mended = mended + 1
  end
end

function parts.spill_order(member)
  local id = string.match(member, '^([^%z]*)%z')
  local stop = id and string.find(member, '\0', #id + 2, true)
  if stop and stop - #id > 29 then
    settle_place(id, string.sub(member, stop + 1), string.sub(member, #id + 2, stop))
    make_long(id)
  end
end

local found = redis.call(part == 'spill_order' and 'ZSCAN' or 'HSCAN', part == 'spill_order' and spill_order or spill, cursor, 'COUNT', limit)
for i = 1, #found[2], 2 do
  parts[part](found[2][i], found[2][i + 1])
end
return {found[1], mended}
