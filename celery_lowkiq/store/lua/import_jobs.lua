-- Receives a transfer of ids from another shard. What comes is older than what calls have brought here since: it is merged as a
-- job that is restored (rule 3), and calls that came meanwhile act as if they had come after it. After an aborted migration,
-- a job may be here that is older than what comes: that acts on it as calls do.
--
-- ROLE: operator
-- KEYS: meta @waiting! jobs spill spill_order calls debounce early_due done_scores buckets failed errors tries crash_marks @morgue arrived outbox
-- ARGV: merge policy channel index gen shard number data
--   gen: number of the migration; shard: where the transfer comes from; number, data: as export.lua returns them
-- USES: meta.begin_format time migration.moving waiting.wake migration processing.restore morgue.merge crashes.marks waiting.holds policies policies.keep policies.per_run policies.due
-- FLAGS: allow-oom
-- Returns: 1; 0 for a number that was received before; -1 when the shard is not in this migration.
-- Cost: O(log n) a payload. Repeated: no effect.
local received = 'received:' .. shard
if tonumber(redis.call('HGET', outbox, received) or 0) >= tonumber(number) then
  return 0
elseif not has_joined(gen) then
  return -1
end
redis.call('HSET', outbox, received, number)
local before = first_due()
local COUNTS = {'processed', 'failed', 'merged', 'dead', 'dropped'}

local function add_counts(record)
  for _, name in ipairs(COUNTS) do
    local count = record[name .. '_count']
    if count then
      redis.call('HINCRBY', meta, name, count)
    end
  end
end

-- The value that the order of `first` finds in a text, as a number.
local function leading(text)
  return tonumber(string.match(text, '^%S+')) or 0
end

-- Two marks of an id: the one with the higher level stays. With one level, it ends when both would have ended.
local function add_crash_mark(id, text)
  local known = redis.call('HGET', crash_marks, id)
  local own, mark = read_mark(known or ''), read_mark(text)
  if not known or own.level < mark.level then
    redis.call('HSET', crash_marks, id, text)
  elseif own.level == mark.level then
    for name in pairs(own.names) do
      mark.names[name] = true
    end
    mark.last = tonumber(own.last) > tonumber(mark.last) and own.last or mark.last
    write_mark(id, mark)
  end
end

-- Data of an id beside its jobs.
local function add_history(id, record)
  local score = redis.call('HGET', done_scores, id)
  if record.done_scores and not (score and leading(score) > leading(record.done_scores)) then
    redis.call('HSET', done_scores, id, record.done_scores)
  end
  if record.crash_marks then
    add_crash_mark(id, record.crash_marks)
  end
  if record.tries then
    local own = redis.call('HGET', tries, id)
    redis.call('HSET', tries, id, record.tries .. (own and '\n' .. own or ''))
  end
  if record.buckets then
    redis.call('ZADD', buckets, 'GT', record.buckets, id)
  end
  if record.paused then
    local held_at, paused_at = pause_of(id)
    local held_there, paused_there = read_pause(record.paused)
    set_pause(id, held_there or held_at, paused_there or paused_at)
  end
end

-- Calls, due at `time` without the waiting job of the id, act on it. entry, later: of debounce, of the job and of the calls.
local function act_on(id, time, priority, entry, later)
  local due_at
  if redis.call('ZSCORE', failed, id) then
    due_at = hooks.retry_after_call and hooks.retry_after_call(id, time)
  elseif entry and later and hooks.join_debounce then
    due_at = hooks.join_debounce(id, entry, later, time)
  end
  if due_at or priority < priority_of(id) then
    index_put(id, due_at or index_score(id), math.min(priority, priority_of(id)))
  end
  if options.anew_on_push then
    forget_failure(id)
  end
end

-- Restores the job of an id; then the calls that have come here, due at `own` without it, act on it.
local function add_job(id, record, own)
  local entry = redis.call('HGET', debounce, id)
  local items, priority = unpack_items(record.jobs), tonumber(record.priority or 0)
  local is_restored = restore_job(id, items, record.perform_in, record.failed or '-1', record.errors or '', priority)
  if not is_restored then
    return
  end
  for name, key in pairs({debounce = debounce, early_due = early_due}) do
    if record[name] then
      redis.call('HSET', key, id, record[name])
    end
  end
  if own then
    act_on(id, own, priority_of(id), record.debounce, entry)
  end
end

-- Adds calls to the job of an id, which is older.
local function add_calls(id, record)
  local items, payload = unpack_items(record.jobs), failed_payload(id)
  set_add(waiting, id, items, false)
  forget_if_passed(id, payload)
  if not hooks.trim or hooks.trim(id, items) then
    act_on(id, record.perform_in, tonumber(record.priority or 0), redis.call('HGET', debounce, id), record.debounce)
  end
end

-- A part of an id: no claim takes it before the last one.
local function add_part(id, record, is_older)
  if record.jobs then
    set_add(waiting, id, unpack_items(record.jobs), is_older)
    if index_score(id) then
      hold(id)
    else
      index_hold(id, record.perform_in)
      redis.call('ZADD', arrived, 0, id)
    end
  end
end

local function add(record)
  local id = record.id
  local own = index_score(id)
  local is_older = not own or redis.call('ZSCORE', arrived, id)
  for from = 1, #(record.calls or {}) do
    redis.call('ZADD', calls, 0, record.calls[from])
  end
  -- A tracker orders the runs of a call by these numbers (track_update.lua).
  if tonumber(record.claim or 0) > tonumber(redis.call('HGET', meta, 'claim') or 0) then
    redis.call('HSET', meta, 'claim', record.claim)
  end
  if record.dead_jobs then
    merge_dead(id, unpack_items(record.dead_jobs), record.dead, record.dead_errors or '', true)
  end
  if record.part then
    return add_part(id, record, is_older and true)
  end
  add_history(id, record)
  if record.jobs and is_older then
    add_job(id, record, own ~= record.perform_in and own)
  elseif record.jobs then
    add_calls(id, record)
  end
  release_moving({id})
  redis.call('ZREM', arrived, id)
end

-- Plain jobs, of whose ids nothing is here, are added together.
local PLAIN = {id = true, jobs = true, perform_in = true, signed = true}
local plain, ids, others = {}, {}, {}

local function is_plain(record)
  for name in pairs(record) do
    if not PLAIN[name] then
      return false
    end
  end
  return record.jobs and not hooks.trim
end

-- Number of payloads of a plain job; false for a record that must be spilled.
local function packed_size(record)
  local count = #unpack_items(record.jobs)
  return (count == 1 or #record.jobs <= PACKED_BYTES) and count
end

for _, record in ipairs(unpack_records(data)) do
  if record.signed then
    begin_signatures(redis.call('HGET', meta, 'format'))
  end
  if record.id == '' then
    add_counts(record)
  elseif is_plain(record) then
    plain[#plain + 1], ids[#ids + 1] = record, record.id
  else
    others[#others + 1] = record
  end
end
local known = #ids > 0 and redis.call('HMGET', jobs, unpack(ids)) or {}
local times, new = {}, {}
for i, record in ipairs(plain) do
  local count = not known[i] and packed_size(record)
  if not count then
    others[#others + 1] = record
  else
    times[#times + 1], times[#times + 2] = record.perform_in, record.id
    new[#new + 1], new[#new + 2] = record.id, record.jobs
    add_extra(waiting, count - 1)
  end
end
if #new > 0 then
  redis.call('HSET', jobs, unpack(new))
  index_add(times)
end
for _, record in ipairs(others) do
  add(record)
end
count_payloads(waiting)
redis.call('PERSIST', done_scores)
redis.call('PERSIST', buckets)
if is_open(gen) then
  wake(before)
else
  -- Jobs that belong elsewhere are sorted when the shard has opened.
  any_special = true
  while hold_some() do
  end
end
return 1
