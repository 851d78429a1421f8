-- Reads jobs with all their payloads, a bounded part at a time: waiting ones, held or not, or (bound to the morgue's keys,
-- `held`, `ranked` and `classes` as `index`) dead ones.
--
-- KEYS: index paused? held ranked classes failed errors records spill order
-- ARGV: cursor limit max_bytes [id]...
--   cursor: '', or what the step before returned: where to go on within the first id
--   limit, max_bytes: payloads to return, and their size; exceeded by one step of a long job
-- USES: bag_read ranks
-- Returns: {ids dealt with, cursor, {id, index score, retry_count, error, priority, score, payload, flag, ...}, ...}; go
--   on with the ids that are left.
-- Cost: O(log n) an id, O(limit).
local bag = {records = records, spill = spill, order = order}
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

-- Gives what fits of a spilled bag; returns the position to go on from, or nil at its end.
local function give_spilled(job, id, from)
  repeat
    local items, members = spilled_step(bag, id, from)
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
  local when = redis.call('ZSCORE', index, id) or redis.call('ZSCORE', ranked, id) or redis.call('ZSCORE', held, id)
  if when then
    local retry_count, message = redis.call('ZSCORE', failed, id) or '-1', redis.call('HGET', errors, id) or ''
    local job = {id, when, retry_count, message, rank_of(id)}
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
