-- Ends claimed jobs: out of processing, back to the queue, to the morgue and the counters, in one change
-- (rules 3, 5, 7). What is not in processing under the named claim is left alone.
--
-- KEYS: lease? meta? @waiting jobs spill spill_order failed errors claimed? processing tries? crash_marks? @morgue
-- POLICY KEYS: debounce? early_due? done_scores? buckets?
-- ARGV: owner epoch merge policy claim done [id]*done [id claim disposition retry_count delay error try bad [position error]*bad]...
--   claim, done: how many ids of that claim are done, with nothing else to say of them
--   disposition: done, retry (with retry_count, see lib/isolation; delay in s, or, after @, a Unix time), die, bury, return (delay
--   0: at its own time)
--   try: '' or what the log of the job's tries is to say
--   bad: payloads that go to the morgue anyway; at position -1 - n, with '' for an error, are dropped; with 'over' or
--   'done', have run
-- USES: time server owner waiting_index next_due payload_set_read payload_set policy rate_per_id keep_highest drop_stale waiting morgue processing tries suspects
-- FLAGS: allow-oom
-- Returns: {now, next_due or '', 1 when all of `done` were settled, id, ...}: the other ids that were; error
--   NOTOWNER <epoch>.
-- Cost: O(log n) a payload.
if not is_owner() then
  return refuse()
end
local now = now_us()
local now_s = seconds(now)

-- Takes the bad payloads (ARGV from `at`: position, error) out of a job's items: buried, dropped, or over. Returns the
-- others, and whether any that is over has run.
local function remove_payloads(id, items, at, count)
  local good, reasons, words = {header = items.header}, {}, {}
  for i = at, at + 2 * count - 1, 2 do
    local position = tonumber(ARGV[i])
    if position < 0 then
      words[-position] = ARGV[i + 1]
    else
      reasons[position + 1] = ARGV[i + 1]
    end
  end
  local dropped, ran, top = 0, false, nil
  local bad, reason = {header = items.header}, nil
  for position, item in ipairs(items) do
    local word = words[position]
    ran = ran or (word or '') ~= ''
    if word == 'done' then
      -- What stays of the job, with smaller scores, is not stale.
      top = (not good[1] or item[3] <= good[1][3]) and item[1] or top
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
  if top and options.drop_stale then
    record_done_score(id, top)
  end
  return good, ran
end

-- Whether an id that is in no claim is in processing all the same: what tells of the claims was lost.
local function is_claimed_as(id, number)
  local record = redis.call('HGET', processing, id)
  return record and read_processing(record).claim == number
end

-- `unpack` and commands take so many ids at once.
local STEP_IDS = 1000
local any_suspect = redis.call('HLEN', crash_marks) > 0
local processed = 0
local dispositions = {}

-- A success clears the count of a suspect.
local function clear_crashes(id)
  local mark = any_suspect and redis.call('HGET', crash_marks, id)
  if mark then
    local level = read_mark(mark)
    write_mark(id, level, '', '')
  end
end

-- Without anything left to run, it is a suspect no more.
local function remove_mark(id)
  if any_suspect and redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', crash_marks, id)
  end
end

function dispositions.done(id, job, items)
  processed = processed + 1
  clear_crashes(id)
  if options.drop_stale and #items > 0 then
    record_done_score(id, items[#items][1])
  end
  end_log(id)
end

function dispositions.retry(id, job, items, retry_count, delay, message)
  redis.call('HINCRBY', meta, 'failed', 1)
  local perform_in = string.match(delay, '^@(.+)$') or delayed(now, delay)
  restore_job(id, items, perform_in, retry_count, message, tonumber(retry_count) >= 0 and options.retry_priority or job.priority)
end

-- Nothing of what was claimed is back, but what the claim left may wait: it has failed with the job, unlike calls that
-- came meanwhile to an id of which nothing waited.
local function start_anew(id, priority)
  if redis.call('ZREM', failed, id) == 1 then
    redis.call('HDEL', errors, id)
    clear_policy_state(id)
    index_put(id, now_s, math.min(priority, priority_of(id)))
  end
end

function dispositions.die(id, job, items, retry_count, delay, message)
  redis.call('HINCRBY', meta, 'failed', 1)
  bury(id, {items[1], header = items.header}, message, now_s)
  table.remove(items, 1)
  local priority = options.retry_priority and (options.priority or 0) or job.priority
  if not restore_job(id, items, now_s, '-1', '', priority) then
    start_anew(id, priority)
  end
end

function dispositions.bury(id, job, items, retry_count, delay, message)
  redis.call('HINCRBY', meta, 'failed', 1)
  bury(id, items, message, now_s)
end

dispositions['return'] = function(id, job, items, retry_count, delay)
  local time = tonumber(delay) > 0 and delayed(now, delay) or job.perform_in
  -- An early run that did not take place is due again.
  if options.due_on_push and tonumber(job.retry_count) >= 0 and tonumber(time) > now / 1000000 and tonumber(delay) <= 0 then
    time = now_s
  end
  restore_unfinished(id, job, items, time)
end

local at, ended = rest + done, {}

-- Nearly all jobs: out of processing in a few commands.
for from = rest, at - 1, STEP_IDS do
  local ids = {unpack(ARGV, from, math.min(from + STEP_IDS, at) - 1)}
  local numbers, found = redis.call('ZMSCORE', claimed, unpack(ids)), {}
  for i, id in ipairs(ids) do
    if numbers[i] == claim or not numbers[i] and is_claimed_as(id, claim) then
      found[#found + 1] = id
      ended[#ended + 1] = id
    end
  end
  if #found > 0 then
    redis.call('ZREM', claimed, unpack(found))
    redis.call('HDEL', processing, unpack(found))
  end
end
processed = #ended
for _, id in ipairs((any_suspect or any_tries) and ended or {}) do
  clear_crashes(id)
  remove_mark(id)
  end_log(id)
end

local all_done = #ended == tonumber(done)
local settled = all_done and {} or ended

while at <= #ARGV do
  local id, claim, disposition, retry_count, delay, message, try, bad = unpack(ARGV, at, at + 7)
  local number = redis.call('ZSCORE', claimed, id)
  -- What is not done stays where it is when its payloads are lost, to be counted with them.
  local known = number == claim and (disposition == 'done' or redis.call('HEXISTS', processing, id) == 1)
  if known or not number and is_claimed_as(id, claim) then
    local job = take_processing(id)
    local items, ran = remove_payloads(id, job.items, at + 8, bad)
    local unstarted = disposition == 'return' and tonumber(delay) <= 0
    if options.rate and (unstarted or #items == 0 and not ran) then
      return_token(id)
    end
    dispositions[disposition](id, job, items, retry_count, delay, message)
    log_try(id, now_s, string.match(retry_count, '^%-?%d+'), try)
    remove_mark(id)
    settled[#settled + 1] = id
  end
  at = at + 8 + 2 * bad
end

if processed > 0 then
  redis.call('HINCRBY', meta, 'processed', processed)
  if options.drop_stale then
    sweep_done_scores()
  end
end
local reply = {now_s, next_due(), all_done and 1 or 0}
for i, id in ipairs(settled) do
  reply[3 + i] = id
end
return reply
