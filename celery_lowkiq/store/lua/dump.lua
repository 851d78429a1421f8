-- Reads waiting jobs with all payloads, or dead jobs with the keys of the morgue, a bounded part at a time.
--
-- ROLE: operator
-- KEYS: @waiting failed errors records spill spill_order
-- ARGV: cursor limit max_bytes [id]...
--   cursor: '' at first, then as returned by the previous step: the position within the first id
--   limit, max_bytes: maximum number of payloads to return, and of bytes; a step of a long job may exceed them
-- USES: payloads waiting.index
-- Returns: {ids dealt with, cursor, {id, index score, retry_count, error, priority, entry in `paused` or '', score, payload, flag and signature, ...}, ...}; go
--   on with the ids that are left.
-- Cost: O(log n) an id, O(limit).
local set = {records = records, spill = spill, spill_order = spill_order}
local left, bytes_left = tonumber(limit), tonumber(max_bytes)
local reply = {0, ''}

local function full()
  return left <= 0 or bytes_left <= 0
end

local function add(job, items)
  for _, item in ipairs(items) do
    job[#job + 1], job[#job + 2], job[#job + 3] = item[1], item[2], item[4] .. item[5]
    left, bytes_left = left - 1, bytes_left - #item[2]
  end
end

-- Adds payloads of a long job up to the limits; returns the position to go on from, or nil at the end.
local function add_spilled(job, id, from)
  repeat
    local items, _, following = spilled_step(set, id, from)
    add(job, items)
    from = following
  until not from or full()
  return from
end

for i = rest, #ARGV do
  local id = ARGV[i]
  local when = index_score(id)
  if when then
    local retry_count, message = redis.call('ZSCORE', failed, id) or '-1', redis.call('HGET', errors, id) or ''
    local job = {id, when, retry_count, message, priority_of(id), any_paused and redis.call('ZSCORE', paused, id) or ''}
    local head = #job
    local record, from = redis.call('HGET', records, id) or '', nil
    if record == SPILLED then
      from = add_spilled(job, id, cursor ~= '' and cursor or lex_min(id))
    else
      add(job, unpack_items(record))
    end
    -- The previous step may have ended with the last payload.
    if cursor == '' or #job > head then
      reply[#reply + 1] = job
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
