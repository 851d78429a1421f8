-- Jobs in processing.
--
-- KEYS: claimed processing
-- USES: payloads
-- A record is '<claim> <perform_in> <retry_count> <error length> <error><packed payloads>'. '<claim>@<number>': calls of the
-- job have records; those above this number arrived after the claim. '#<priority>' follows unless the priority is 0.
-- claim: a text because Lua would write a large number as 1e+14.
-- Returns the head of the record.
local function write_processing(id, claim, perform_in, retry_count, message, items, last_call, priority)
  redis.call('ZADD', claimed, claim, id)
  local first = last_call and claim .. '@' .. last_call or claim
  if priority > 0 then
    first = first .. '#' .. priority
  end
  local head = table.concat({first, perform_in, retry_count, #message, ''}, ' ') .. message
  redis.call('HSET', processing, id, pack_items(items, head))
  return head
end

-- Returns {claim, priority, perform_in, retry_count, error, items}.
local function read_processing(record)
  local _, stop, claim, priority, perform_in, retry_count, length =
    string.find(record, '^(%d+)%f[%D]@?%d*%f[%D]#?(%d?) (%S+) (%-?%d+%f[%D]%.?%d*) (%d+) ')
  if not (stop and is_number(perform_in)) then
    return {claim = '0', priority = 0, perform_in = '0', retry_count = '-1', error = '', items = unpack_items(record)}
  end
  return {
    claim = claim,
    priority = tonumber(priority) or 0,
    perform_in = perform_in,
    retry_count = retry_count,
    error = string.sub(record, stop + 1, stop + length),
    items = unpack_items(record, stop + length + 1),
  }
end

-- Removes a job from processing and returns its record; `record`: if the caller has read it.
local function take_processing(id, record)
  record = record or redis.call('HGET', processing, id) or ''
  redis.call('ZREM', claimed, id)
  redis.call('HDEL', processing, id)
  return read_processing(record)
end

-- PART: checks
-- Checks of a claim before it takes due jobs: lost keys, and claims without an owner that runs them.
--
-- KEYS: meta @waiting jobs spill spill_order claimed processing
-- USES: waiting.due
-- Keys that list the same jobs have equal sizes: they differ only when one of the keys was lost.

-- Compares the keys of long jobs, whose lengths differ by `difference` since a repair has accepted that, and those of jobs in
-- processing. Returns the name of a key that differs, or nil; then the number of payloads of long jobs, and of jobs in
-- processing.
local function inconsistent_key(difference)
  local ordered, busy = redis.call('ZCARD', spill_order), redis.call('ZCARD', claimed)
  if redis.call('HLEN', spill) - ordered ~= tonumber(difference or 0) then
    return 'spill_order', ordered, busy
  end
  return redis.call('HLEN', processing) ~= busy and 'processing' or nil, ordered, busy
end

-- Compares waiting jobs with the indexes of their times. Returns the name of a key that differs, or nil.
local function inconsistent_index()
  local elsewhere = redis.call('HLEN', jobs) - redis.call('ZCARD', due)
  local prioritized, paused_count = redis.call('ZCARD', due_prioritized), redis.call('ZCARD', due_paused)
  if elsewhere == 0 and prioritized == 0 and paused_count == 0 and not any_moving then
    return nil
  elseif elsewhere ~= prioritized + paused_count + (any_moving and redis.call('ZCARD', moving) or 0) then
    return 'jobs'
  elseif prioritized ~= redis.call('ZCOUNT', by_priority, '(0', '+inf') then
    return 'by_priority'
  end
  return paused_count > 0 and redis.call('ZCARD', paused) == 0 and 'paused' or nil
end

-- Ids of claims that are not open claims of the owner, in the order of the claims. `open`: numbers of the open claims, or
-- 'any'. A Redis that lost its last writes may have lost other claims, or their settles.
local function unacknowledged(open)
  if open == 'any' or redis.call('ZCARD', claimed) == 0 then
    return {}
  end
  local known, found = {}, {}
  for number in string.gmatch(open, '%d+') do
    known[number] = true
  end
  local ids = redis.call('ZRANGE', claimed, 0, -1, 'WITHSCORES')
  for i = 1, #ids, 2 do
    if not known[ids[i + 1]] then
      found[#found + 1] = ids[i]
    end
  end
  return found
end

-- PART: restore
-- Moves jobs back to the queue.
--
-- KEYS: jobs failed errors arrived
-- USES: payloads.change waiting.index waiting.jobs policies policies.per_run policies.keep policies.due
if any_moving then
  redis.call('ZCARD', arrived)
end

-- Restores a job: adds its payloads, as the older ones, to those of the waiting job; its perform_in, retry_count and error
-- replace those of the waiting job; the more urgent priority stays. Without payloads, or when newer ones displace all of
-- them, the waiting job keeps its own, and the result is false; else it is the retry_count.
local function restore_job(id, items, perform_in, retry_count, message, priority)
  if #items == 0 then
    return false
  end
  if (priority > 0 or any_prioritized) and redis.call('HEXISTS', jobs, id) == 1 then
    priority = math.min(priority, priority_of(id))
  end
  set_add(waiting, id, items, true)
  if hooks.trim and not hooks.trim(id, items) then
    return false
  end
  index_put(id, perform_in, priority)
  if any_moving then
    redis.call('ZREM', arrived, id)
  end
  if hooks.clear then
    hooks.clear(id)
  end
  if options.per_run == 1 and tonumber(retry_count) >= 0 and first_payload(id) ~= items[1][2] then
    retry_count = '-1'
  end
  if tonumber(retry_count) < 0 then
    redis.call('ZREM', failed, id)
    redis.call('HDEL', errors, id)
  else
    redis.call('ZADD', failed, retry_count, id)
    redis.call('HSET', errors, id, message)
  end
  return retry_count
end

-- Restores a claimed job that was not run to its end.
local function restore_unfinished(id, job, items, time)
  local retry_count = restore_job(id, items, time, job.retry_count, job.error, job.priority)
  if retry_count and hooks.restored then
    job.retry_count = retry_count
    hooks.restored(id, job, time)
  end
end

-- PART: recover
-- Returns jobs in processing to the queue that no owner runs to their end.
--
-- KEYS: @waiting claimed processing arrived inflight
-- USES: processing.restore processing waiting.index
-- In a migration, jobs that were in processing at the fence wait for a mover when they are back in the queue.
if not any_moving and redis.call('ZCARD', inflight) > 0 then
  any_moving = true
  redis.call('ZCARD', arrived)
end

-- Restores a job that was taken from processing. In a migration, one that was in processing at the fence is hidden from claims
-- until a mover has sorted it: when a failover has lost that it ended, its id may run in another shard since.
local function recover(id, job, time)
  restore_unfinished(id, job, job.items, time)
  if any_moving and redis.call('ZSCORE', inflight, id) and index_score(id) then
    hold(id)
  end
end

-- PART: orphans
-- Lists jobs that a script removed, and that may have had calls, for its reply: id, number of the shard's last call,
-- processing record or '', ... Python ends these calls (store/call_records.py, orphaned_records).
--
-- KEYS: processing
local function add_orphan(orphans, id, last_call)
  if last_call and last_call ~= '0' then
    for _, value in ipairs({id, last_call, redis.call('HGET', processing, id) or ''}) do
      orphans[#orphans + 1] = value
    end
  end
end
