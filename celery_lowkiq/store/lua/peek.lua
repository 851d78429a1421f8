-- Reads the beginning of waiting jobs, or of dead jobs with the keys of the morgue.
--
-- ROLE: reader
-- KEYS: @waiting failed errors records spill spill_order
-- ARGV: limit max_bytes cut [id]...
--   limit, max_bytes: maximum number and bytes of an id's payloads, at least one; cut: maximum bytes of each
-- USES: payloads waiting.index
-- Returns: for each id {index score or '', retry_count, error, payload count, entry of its id in `paused` or '', priority, score, size, signature,
--   payload, ...}.
-- Cost: O(log n + limit) per id.
-- Foreign data only: each copy of as many bytes costs Redis about 10 ms, and a command that hands them to Lua 80 ms.
local LARGE = 16777216

-- Returns payloads of an id, the number of all its payloads, and the number of those to show. A record of foreign data, which
-- would stop Redis, is shown as one payload of its length, without a byte of it.
local function set_peek(id)
  local set = {records = records, spill = spill, spill_order = spill_order}
  local length = redis.call('HSTRLEN', records, id)
  if length > LARGE then
    return {{'0', '', 0, '', '', length}}, 1, 1
  end
  local record = redis.call('HGET', records, id)
  local items, count, from = {}, 0, lex_min(id)
  if record and record ~= SPILLED then
    items = unpack_items(record)
    count = #items
    return items, count, (fitting(items, 0, 0, tonumber(limit), tonumber(max_bytes)))
  end
  local bytes = 0
  repeat
    local some, members = spilled_step(set, id, from)
    local fit
    fit, bytes = fitting(some, #items, bytes, tonumber(limit), tonumber(max_bytes))
    for i = 1, fit do
      items[#items + 1] = some[i]
    end
    from = '(' .. (members[#members] or '')
  until fit < #some or #some == 0
  return items, redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)), #items
end

local reply = {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local score = index_score(id)
  local job = {
    score or '',
    redis.call('ZSCORE', failed, id) or '-1',
    string.sub(redis.call('HGET', errors, id) or '', 1, 262144),
    0,
    any_paused and redis.call('ZSCORE', paused, id) or '',
    priority_of(id),
  }
  local items, count, shown = set_peek(id)
  job[4] = count
  for position = 1, shown do
    local payload = items[position][2]
    job[#job + 1] = items[position][1]
    job[#job + 1] = items[position][6] or #payload
    job[#job + 1] = items[position][5]
    job[#job + 1] = string.sub(payload, 1, cut)
  end
  reply[#reply + 1] = job
end
return reply
