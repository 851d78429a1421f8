-- Reads jobs with all their payloads, a bounded part at a time: waiting ones, or (with the morgue's keys) dead ones.
--
-- KEYS: @waiting failed errors records spill spill_order
-- ARGV: cursor limit max_bytes [id]...
--   cursor: '', or what the step before returned: where to go on within the first id
--   limit, max_bytes: payloads to return, and their size; exceeded by one step of a long job
-- USES: payload_set_read waiting_index
-- Returns: {ids dealt with, cursor, {id, index score, retry_count, error, priority, score, payload, flag, ...}, ...}; go
--   on with the ids that are left.
-- Cost: O(log n) an id, O(limit).
local set = {records = records, spill = spill, spill_order = spill_order}
local left, bytes_left = tonumber(limit), tonumber(max_bytes)
local reply = {0, ''}

local function full()
  return left <= 0 or bytes_left <= 0
end

local function give(job, items)
  for _, item in ipairs(items) do
    job[#job + 1], job[#job + 2], job[#job + 3] = item[1], item[2], item[4]
    left, bytes_left = left - 1, bytes_left - #item[2]
  end
end

-- Gives what fits of a spilled set; returns the position to go on from, or nil at its end.
local function give_spilled(job, id, from)
  repeat
    local items, members = spilled_step(set, id, from)
    give(job, items)
    if #members < STEP then
      return nil
    end
    from = '(' .. members[STEP]
  until full()
  return from
end

for i = rest, #ARGV do
  local id = ARGV[i]
  local when = index_score(id)
  if when then
    local retry_count, message = redis.call('ZSCORE', failed, id) or '-1', redis.call('HGET', errors, id) or ''
    local job = {id, when, retry_count, message, priority_of(id)}
    reply[#reply + 1] = job
    local record, from = redis.call('HGET', records, id) or '', nil
    if record == SPILLED then
      from = give_spilled(job, id, cursor ~= '' and cursor or lex_min(id))
    else
      give(job, unpack_items(record))
    end
    if from then
      reply[2] = from
      return reply
    end
  end
  cursor = ''
  reply[1] = i - rest + 1
  if full() then
    return reply
  end
end
return reply
