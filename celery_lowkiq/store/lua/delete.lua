-- Deletes waiting jobs. A long job takes several steps: payloads that arrive after the first step stay.
--
-- ROLE: operator
-- KEYS: @waiting failed errors jobs spill spill_order meta processing dead tries crash_marks
-- POLICY KEYS: debounce? early_due?
-- ARGV: policy only_failed upto cursor limit max_bytes [id]...
--   only_failed: '1' deletes only jobs that have failed
--   upto, cursor: '' at first, then as returned by the previous step
--   limit, max_bytes: maximum number of payloads to read in this step, and of bytes; a step may exceed them by a part of one job
-- USES: payloads waiting.index morgue.history processing.orphans time policies policies.due waiting.jobs
-- Returns: {ids dealt with, jobs deleted, upto, cursor, orphans (see lib/processing.lua)}; go on with the ids that are left.
-- Cost: O(limit log n).
local arrivals, last_call = string.match(upto, '^(%x+) (%d+)$')
if not arrivals then
  arrivals = string.format('%012x', ARRIVAL_ZERO + (redis.call('HGET', meta, 'last_arrival') or 0))
  last_call = redis.call('HGET', meta, 'last_call') or '0'
end
local orphans = {}

local function wanted(id)
  return index_score(id) and (only_failed ~= '1' or redis.call('ZSCORE', failed, id))
end

local function reply(dealt, deleted, cursor)
  count_payloads(waiting)
  return {dealt, deleted, arrivals .. ' ' .. last_call, cursor, orphans}
end

local function delete_job(id, extra)
  redis.call('HDEL', jobs, id)
  add_extra(waiting, -extra)
  remove_waiting(id)
  forget_history(id)
end

local left, bytes_left = tonumber(limit), tonumber(max_bytes)

-- Deletes one step of a spilled set; returns the position to go on from, or nil at its end.
local function shrink(id, from)
  local items, members, following = spilled_step(waiting, id, from)
  left = left - #members
  for i, member in ipairs(members) do
    bytes_left = bytes_left - #items[i][2]
    local place = #id + 2
    if string.sub(member, place + 16, place + 27) <= arrivals then
      redis.call('ZREM', spill_order, member)
      redis.call('HDEL', spill, id .. '\0' .. items[i][2])
    end
  end
  return following
end

local deleted = 0
for i = rest, #ARGV do
  local id = ARGV[i]
  if left <= 0 or bytes_left <= 0 then
    return reply(i - rest, deleted, '')
  end
  left = left - 1
  if cursor ~= '' or wanted(id) then
    -- A longer record is not read: it has one payload, which may be large.
    local record = redis.call('HSTRLEN', jobs, id) <= PACKED_BYTES and redis.call('HGET', jobs, id)
    if record == SPILLED then
      local from = cursor ~= '' and cursor or lex_min(id)
      while from and left >= 0 and bytes_left > 0 do
        from = shrink(id, from)
        from = redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) > 0 and from or nil
      end
      if from then
        return reply(i - rest, deleted, from)
      end
      if redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) == 0 then
        delete_job(id, -1)
      end
    elseif cursor == '' then
      delete_job(id, record and #unpack_items(record) - 1 or 0)
    end
    deleted = deleted + 1
    add_orphan(orphans, id, last_call)
  end
  cursor = ''
end
return reply(#ARGV - rest + 1, deleted, '')
