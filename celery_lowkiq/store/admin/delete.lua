-- Deletes jobs: waiting ones, or (with the morgue's keys) dead ones. A payload that arrives while a long set is deleted
-- step by step stays: only arrivals up to the first step go.
--
-- KEYS: @waiting marks errors records spill spill_order meta jobs processing dead tries crash_marks
-- POLICY KEYS: debounce? early_due?
-- ARGV: policy only_marked maximum upto cursor limit [id]...
--   only_marked: '1' deletes only ids that are in marks; maximum: only ids whose index score is not above it
--   upto, cursor: '' at first, then what the step before returned; limit: payloads to look at in this step
-- USES: payload_set_read waiting_index forget_history orphans time policies policy_debounce policy_due_on_push
-- Returns: {ids dealt with, jobs deleted, upto, cursor, orphans (see lib/orphans.lua)}; go on with the ids that are left.
-- Cost: O(limit log n).
local set = {records = records, spill = spill, spill_order = spill_order}
local arrivals, last_call = string.match(upto, '^(%x+) (%d+)$')
if not arrivals then
  arrivals = string.format('%012x', ARRIVAL_ZERO + (redis.call('HGET', meta, 'last_arrival') or 0))
  last_call = redis.call('HGET', meta, 'last_call') or '0'
end
local orphans = {}

local function wanted(id)
  local score = index_score(id)
  return score and tonumber(score) <= tonumber(maximum)
    and (only_marked ~= '1' or redis.call('ZSCORE', marks, id))
end

local function reply(dealt, deleted, cursor)
  return {dealt, deleted, arrivals .. ' ' .. last_call, cursor, orphans}
end

local function delete_job(id)
  redis.call('HDEL', records, id)
  index_remove(id)
  redis.call('ZREM', marks, id)
  redis.call('HDEL', errors, id)
  if hooks.clear then
    hooks.clear(id)
  end
  forget_history(id)
end

-- Deletes one step of a spilled set; returns the position to go on from, or nil at its end.
local function shrink(id, from)
  local items, members = spilled_step(set, id, from)
  for i, member in ipairs(members) do
    local place = #id + 2
    if string.sub(member, place + 16, place + 27) <= arrivals then
      redis.call('ZREM', spill_order, member)
      redis.call('HDEL', spill, id .. '\0' .. items[i][2])
    end
  end
  return #members == STEP and '(' .. members[STEP] or nil
end

local looked, deleted = 0, 0
for i = rest, #ARGV do
  local id = ARGV[i]
  if looked >= tonumber(limit) then
    return reply(i - rest, deleted, '')
  end
  looked = looked + 1
  if cursor ~= '' or wanted(id) then
    if redis.call('HGET', records, id) == SPILLED then
      local from = cursor ~= '' and cursor or lex_min(id)
      while from and looked <= tonumber(limit) do
        from = shrink(id, from)
        from = redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) > 0 and from or nil
        looked = looked + STEP
      end
      if from then
        return reply(i - rest, deleted, from)
      end
      if redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) == 0 then
        delete_job(id)
      end
    elseif cursor == '' then
      delete_job(id)
    end
    deleted = deleted + 1
    add_orphan(orphans, id, last_call)
  end
  cursor = ''
end
return reply(#ARGV - rest + 1, deleted, '')
