-- Ends claimed jobs in one change (rules 3, 5, 7): removes them from processing, restores or buries them, and counts. Jobs
-- that are not in processing under the given claim are left alone.
--
-- ROLE: worker
-- KEYS: lease? meta? @waiting jobs spill spill_order failed errors claimed? processing tries? crash_marks? @morgue arrived? calls
-- POLICY KEYS: debounce? early_due? done_scores? buckets?
-- ARGV: owner epoch merge policy claim done [id]*done [id claim disposition retry_count delay error try bad [position error]*bad]...
--   claim, done: number of ids of that claim that are done and have no bad payloads
--   disposition: done; retry (retry_count: with isolation, see claim.lua; delay: s, or '@<perform_in>', then ' <priority>' for another
--   one); die; bury; return (delay: '0' keeps perform_in); crash (its process died; retry_count: max_crashes; error: of a poison pill)
--   try: line for the log of the job's tries, or ''
--   bad: number of payloads with a disposition of their own: position and error buries one; -1 - position with '' drops it, with
--   'over' or 'done' ends it after a run; '=<length of each part> <signature><key><head><record><payload>' changes it and its call
-- USES: time lease.owner waiting.next_due
-- FLAGS: allow-oom
-- Returns: {now, next_due or '', 1 when all of `done` were settled, id, ...}: the ids that were settled, without those of
--   `done` when all of these were; error NOTOWNER <epoch>.
-- Cost: O(log n) a payload.
if not is_owner() then
  return refuse()
end
local now = now_us()
local now_s = seconds(now)

-- The log of a failing job's tries: one line each, oldest first.
-- A line has time, retry_count, node and the last line of the error, separated by tabs. The log is deleted with the job, but
-- stays while the id is in the morgue.
local TRIES = 10
local any_tries = redis.call('HLEN', tries) > 0

local function log_try(id, at, retry_count, text)
  if redis.call('HEXISTS', jobs, id) == 0 and not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
    return
  elseif text == '' then
    return
  end
  -- A log above 64 KiB is foreign.
  local lines, log = {}, redis.call('HGET', tries, id) or ''
  for line in string.gmatch(#log <= 65536 and log or '', '[^\n]+') do
    lines[#lines + 1] = line
  end
  local node = string.match(owner, '^(.+)%-[^-]*$') or owner
  lines[#lines + 1] = table.concat({at, retry_count, node, text}, '\t')
  redis.call('HSET', tries, id, table.concat(lines, '\n', math.max(1, #lines - TRIES + 1)))
end

local function end_log(id)
  if any_tries and not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
  end
end

-- Ids of one command: `unpack` takes a limited number of values.
local STEP_IDS = 1000
local any_suspect = redis.call('HLEN', crash_marks) > 0
local at = rest + done
-- Jobs of `done` that are in processing under the claim, and those without an entry in `claimed`.
local ended, unlisted = {}, {}
for from = rest, at - 1, STEP_IDS do
  local ids = {unpack(ARGV, from, math.min(from + STEP_IDS, at) - 1)}
  local numbers = redis.call('ZMSCORE', claimed, unpack(ids))
  for i, id in ipairs(ids) do
    if numbers[i] == claim then
      ended[#ended + 1] = id
    elseif not numbers[i] then
      unlisted[#unlisted + 1] = id
    end
  end
end

local function remove_ended()
  for from = 1, #ended, STEP_IDS do
    local to = math.min(from + STEP_IDS - 1, #ended)
    redis.call('ZREM', claimed, unpack(ended, from, to))
    redis.call('HDEL', processing, unpack(ended, from, to))
  end
end

-- Most settles: all jobs are done, and nothing else is stored of them.
if at > #ARGV and #ended == tonumber(done) and #ended > 0 and policy == '' and not any_suspect and not any_tries then
  remove_ended()
  redis.call('HINCRBY', meta, 'processed', #ended)
  return {now_s, next_due(), 1}
end

-- USES: time.delay payloads waiting.index waiting.jobs processing.restore morgue processing crashes.count policies.drop_stale policies.rate_per_id policies.hold
-- Changes the payload and its signature, unless the new one is ''. The record of its call, or a new one, follows.
local function changed(item, word)
  local _, at, lengths = string.find(word, '^=(%d+ %d+ %d+ %d+ )')
  local parts = {}
  for length in string.gmatch(lengths, '%d+') do
    parts[#parts + 1] = string.sub(word, at + 1, at + length)
    at = at + length
  end
  local signature, key, head, record = unpack(parts)
  local payload, flag = string.sub(word, at + 1), item[4]
  if key ~= '' then
    local member = redis.call('ZRANGEBYLEX', calls, '[' .. key, '(' .. key .. '\255', 'LIMIT', 0, 1)[1]
    if member then
      redis.call('ZREM', calls, member)
      redis.call('ZADD', calls, 0, head .. string.sub(key, -12) .. record)
    end
  elseif record ~= '' then
    redis.call('ZADD', calls, 0, head .. string.format('%012x', redis.call('HINCRBY', meta, 'last_call', 1)) .. record)
    flag = 'R'
  end
  if payload == '' then
    return {item[1], item[2], item[3], flag, item[5]}
  end
  return {item[1], payload, item[3], flag, signature}
end

-- Buries, drops or ends the bad payloads of a job (ARGV from `at`: position, error). Returns the other items, and whether any
-- bad payload has run.
local function remove_payloads(id, items, at, count)
  local good, reasons, words = {}, {}, {}
  for i = at, at + 2 * count - 1, 2 do
    local position = tonumber(ARGV[i])
    if position < 0 then
      words[-position] = ARGV[i + 1]
    else
      reasons[position + 1] = ARGV[i + 1]
    end
  end
  local dropped, ran, top = 0, false, nil
  local bad, reason = {}, nil
  for position, item in ipairs(items) do
    local word = words[position]
    ran = ran or (word or '') ~= ''
    if word == 'done' then
      -- Remaining payloads with smaller scores must not become stale.
      top = (not good[1] or item[3] <= good[1][3]) and item[1] or top
    elseif word and string.sub(word, 1, 1) == '=' then
      good[#good + 1] = changed(item, word)
    elseif word then
      dropped = dropped + (word == '' and 1 or 0)
    elseif reasons[position] then
      bad[#bad + 1], reason = item, reasons[position]
    else
      good[#good + 1] = item
    end
  end
  bury(id, bad, reason, now_s)
  if dropped > 0 then
    redis.call('HINCRBY', meta, 'dropped', dropped)
  end
  if top and hooks.done then
    hooks.done(id, top)
  end
  return good, ran
end

-- Returns true for the record of an id in processing whose entry in `claimed` was lost.
local function is_claimed_as(record, number)
  return record and read_processing(record).claim == number
end

local processed, failed_runs = 0, 0
local dispositions = {}

-- Takes the first payloads of a suspect, which leave the queue, off its mark. It stays suspect while named ones are left, or
-- the condemned one. A success of a payload resets its crash count.
local function clear_suspect(id, text, items, leaving, disposition)
  local mark = read_mark(text)
  for i = 1, leaving do
    mark.names[name_of(items[i][2])] = nil
    if disposition == 'done' and items[i][2] == mark.payload then
      mark.entries, mark.payload = '', ''
    end
  end
  local failed_alone = disposition == 'retry' and #items == 1
  if failed_alone then
    passes(mark, items[1])
  end
  local none_left = leaving > 0 and mark.level < 3 and not next(mark.names)
  if none_left or redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', crash_marks, id)
  elseif (leaving > 0 or failed_alone) and mark.level < 3 then
    write_mark(id, mark)
  end
end

-- Dispositions return the number of payloads that leave the queue, nil for none. They are taken for the first ones of the job.
function dispositions.done(id, job, items)
  processed = processed + 1
  if hooks.done and #items > 0 then
    hooks.done(id, items[#items][1])
  end
  end_log(id)
  return #job.items
end

function dispositions.retry(id, job, items, retry_count, delay, message)
  failed_runs = failed_runs + 1
  local when, own_priority = string.match(delay, '^(%S+) ?(%d?)$')
  local given = string.match(when, '^@(.+)$')
  local perform_in = given and due_from(now, given) or delayed(now, when)
  local priority = tonumber(own_priority) or tonumber(retry_count) >= 0 and options.retry_priority or job.priority
  restore_job(id, items, perform_in, retry_count, message, priority)
end

-- Starts the rest of a job anew that its claim left waiting. Such a rest has failed with the job; calls that arrived during
-- the run have not.
local function start_anew(id, priority)
  if redis.call('ZSCORE', failed, id) then
    priority = math.min(priority, priority_of(id))
    remove_waiting(id)
    index_put(id, now_s, priority)
  end
end

function dispositions.die(id, job, items, retry_count, delay, message)
  failed_runs = failed_runs + 1
  bury(id, {items[1]}, message, now_s)
  table.remove(items, 1)
  local priority = options.retry_priority and (options.priority or 0) or job.priority
  if not restore_job(id, items, now_s, '-1', '', priority) then
    start_anew(id, priority)
  end
  return #job.items - #items
end

function dispositions.bury(id, job, items, retry_count, delay, message)
  failed_runs = failed_runs + 1
  bury(id, items, message, now_s)
  return #job.items
end

dispositions['return'] = function(id, job, items, retry_count, delay)
  local time = tonumber(delay) > 0 and delayed(now, delay) or hooks.return_time and hooks.return_time(job, now) or job.perform_in
  restore_unfinished(id, job, items, time)
end

function dispositions.crash(id, job, items, max_crashes, delay, poison_error)
  if #items > 0 then
    suspect(id, items, now, '0', max_crashes, poison_error)
  end
  restore_unfinished(id, job, items, now_s)
end

for _, id in ipairs(unlisted) do
  if is_claimed_as(redis.call('HGET', processing, id), claim) then
    ended[#ended + 1] = id
  end
end
-- Before their records are removed, which have the numbers of their payloads.
for _, id in ipairs(any_suspect and ended or {}) do
  local mark = redis.call('HGET', crash_marks, id)
  local record = mark and redis.call('HGET', processing, id)
  local items = record and read_processing(record).items or {}
  if mark then
    clear_suspect(id, mark, items, #items, 'done')
  end
end
remove_ended()
processed = #ended
for _, id in ipairs(any_tries and ended or {}) do
  end_log(id)
end

local all_done = #ended == tonumber(done)
local settled = all_done and {} or ended

while at <= #ARGV do
  local id, claim, disposition, retry_count, delay, message, try, bad = unpack(ARGV, at, at + 7)
  local number = redis.call('ZSCORE', claimed, id)
  -- A job that is not done stays claimed when its record was lost: the repair counts it.
  local record = (number == claim or not number) and redis.call('HGET', processing, id)
  local known = number == claim and (disposition == 'done' or record)
  if known or not number and is_claimed_as(record, claim) then
    local job = take_processing(id, record)
    local items, ran = remove_payloads(id, job.items, at + 8, bad)
    local unstarted = disposition == 'return' and tonumber(delay) <= 0
    if hooks.not_run and (unstarted or #items == 0 and not ran) then
      hooks.not_run(id)
    end
    local leaving = dispositions[disposition](id, job, items, retry_count, delay, message)
    log_try(id, now_s, string.match(retry_count, '^%-?%d+'), try)
    local mark = any_suspect and redis.call('HGET', crash_marks, id)
    if mark then
      clear_suspect(id, mark, job.items, leaving or 0, disposition)
    end
    settled[#settled + 1] = id
  end
  at = at + 8 + 2 * bad
end

if failed_runs > 0 then
  redis.call('HINCRBY', meta, 'failed', failed_runs)
end
count_payloads(waiting)
if processed > 0 then
  redis.call('HINCRBY', meta, 'processed', processed)
  if hooks.after_settle then
    hooks.after_settle()
  end
end
local reply = {now_s, next_due(), all_done and 1 or 0}
for i, id in ipairs(settled) do
  reply[3 + i] = id
end
return reply
