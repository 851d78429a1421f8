-- Moves due jobs of a shard from waiting to processing. Never an id that is in processing (rule 9), nothing of a paused
-- shard.
-- First, jobs of earlier claims that the owner does not list as open go back to the queue.
-- Isolated jobs (rule 5) are claimed apart from the others, for one batch that is as small as each of them asks for.
--
-- KEYS: lease? meta? @waiting? jobs? spill? spill_order? failed? errors? claimed? processing? crash_marks calls?
-- POLICY KEYS: debounce? early_due? done_scores? buckets?
-- ARGV: owner epoch merge policy request last open limit max_payloads max_bytes suspects max_wait
--   request: grows with each claim of an epoch; the same again returns the same batch
--   last, open: the largest claim number that the owner knows, and the numbers of its open claims, or 'any'
--   suspects: '0' passes suspects by; else one of them is a batch of its own
--   max_payloads, max_bytes: what is taken of one id, and of all ids before the next one is left
--   max_wait: what is due for longer (s) comes before what is more urgent
-- USES: format time server owner key_consistency unacknowledged waiting_index next_due payload_set_read payload_set policy rate_per_id keep_highest drop_stale waiting processing isolation suspects call_records_read unwanted_payloads
-- FLAGS: allow-oom
-- Returns: {now, next_due or '', claim number (0 for a request older than the last), kind, id, processing
--   record, ...}, the first calls when some were moved that have records, and, behind such calls, {id, number of payloads
--   from the smallest score on that a policy drops, ...}; kind 1: the batch is a suspect, 2:
--   only suspects are due, and 4 more when keys of failed jobs do not agree; error NOTOWNER <epoch>; error
--   SHARDS 0 or DAMAGED <key> when keys of the shard were lost, see store/repairs/repairs.py.
-- Cost: O(limit log n + jobs in processing), at most about 2 max_payloads payloads; of a payload of more than max_bytes
-- the first max_bytes + 1 are told.
if not is_owner() then
  return refuse()
end
local now = now_us()
local count, bytes = tonumber(max_payloads), tonumber(max_bytes)
local known = redis.call('HMGET', meta, 'request', 'claim', 'shards', 'spill_difference', 'format')
local damaged = inconsistent_key(known[4])
-- Not in the way of a claim: the caller repairs it afterwards.
local errors_differ = redis.call('ZCARD', failed) ~= redis.call('HLEN', errors)
if is_newer(known[5]) then
  return refuse_format(known[5])
elseif not known[3] or damaged then
  return redis.error_reply(damaged and 'DAMAGED ' .. damaged or 'SHARDS 0')
end
local known_epoch, known_request = string.match(known[1] or '', '^(%d+) (%d+)$')
local latest = known_epoch == epoch and tonumber(known_request) or 0
local number = tonumber(known[2] or 0)
if tonumber(request) < latest then
  return {seconds(now), next_due(), 0, 0}
end

local recorded = {}
local ERRORS_DIFFER = 4
-- True when a due job has lost its payloads.
local payloads_lost = false

-- Returns the number of payloads and bytes that were moved.
local function claim_job(id, perform_in, most, failure, condemned)
  local retry_count = condemned or string.match(failure or '', '^%-?%d+%.?%d*$') or '-1'
  local message = failure and redis.call('HGET', errors, id) or ''
  local own = options.due_on_push and failure and redis.call('HGET', early_due, id)
  local priority = priority_of(id)
  local portion = math.min(most, options.per_run or most)
  local items, more = set_take(waiting, id, portion, bytes)
  if more and portion < most then
    -- At its own time the rest would be the oldest job of the shard for ever, and the only one to run.
    index_put(id, seconds(now), priority)
  elseif #items == 0 and not more then
    payloads_lost = true
  elseif not more then
    index_remove(id)
  end
  -- A payload that runs alone has failed alone: the rest starts anew.
  if #items > 0 and (not more or portion == 1 and portion < most) then
    clear_policy_state(id)
    if failure then
      redis.call('ZREM', failed, id)
      redis.call('HDEL', errors, id)
    end
  elseif more and options.debounce then
    redis.call('HDEL', debounce, id)
  end
  -- Its own time is still to come: the run is an early one.
  if own and tonumber(own) > now / 1000000 then
    perform_in = own
  end
  if #items == 0 then
    return 0, 0
  end
  local size, last_call = 0, nil
  for _, item in ipairs(items) do
    size = size + #item[2]
    if item[4] ~= '' and not last_call then
      last_call = redis.call('HGET', meta, 'last_call')
      recorded[#recorded + 1] = id
    end
  end
  write_processing(id, number, perform_in, retry_count, message, items, last_call, priority)
  if options.rate then
    take_token(id, now)
  end
  return #items, size
end

-- Back to level 2: the next payload of the id is not the condemned one.
local function condemned(id, mark)
  local _, entries, payload = read_mark(mark)
  write_mark(id, 2, entries, payload)
  return CONDEMNED
end

-- A long job whose mark was lost with its record, and that has got new payloads since, is one job again.
local any_long = redis.call('ZCARD', spill_order) > 0
local function mark_long(id)
  local record = redis.call('HGET', jobs, id)
  if record and record ~= SPILLED and redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) > 0 then
    redis.call('HSET', jobs, id, SPILLED)
    spill_items(waiting, id, unpack_items(record), false)
    return true
  end
end

-- What nearly all jobs are: one payload, whose call has no record. It moves as it is.
local function is_plain(record)
  local _, stop, length = string.find(record, '^[%d.]+ (%d+) ')
  return stop and stop + tonumber(length) == #record
end

-- Commands that move plain jobs together, and the jobs as a claim tells of them.
local plain = {ids = {}, claimed = {}, processing = {}}

local function claim_plain(id, perform_in, record)
  local at = #plain.ids + 1
  plain.ids[at] = id
  plain.claimed[2 * at - 1], plain.claimed[2 * at] = number, id
  plain.processing[2 * at - 1] = id
  plain.processing[2 * at] = number .. ' ' .. perform_in .. ' -1 0 ' .. record
end

local function write_plain()
  if #plain.ids > 0 then
    index_remove(unpack(plain.ids))
    redis.call('HDEL', jobs, unpack(plain.ids))
    redis.call('ZADD', claimed, unpack(plain.claimed))
    redis.call('HSET', processing, unpack(plain.processing))
    if options.debounce then
      redis.call('HDEL', debounce, unpack(plain.ids))
    end
    for _, id in ipairs(options.rate and plain.ids or {}) do
      take_token(id, now)
    end
  end
end

-- By position: records of jobs that may be plain.
local function plain_records(ids, any_failed)
  local names = {}
  for i = 1, #ids, 2 do
    names[#names + 1] = ids[i]
  end
  local records = redis.call('HMGET', jobs, unpack(names))
  local failures = any_failed and redis.call('ZMSCORE', failed, unpack(names)) or {}
  for i, record in ipairs(records) do
    records[i] = record and not failures[i] and not (any_prioritized and priority_of(names[i]) > 0) and is_plain(record) and record
  end
  return records
end

-- Moves what is due. Returns 1 when that is a suspect, 2 when only suspects are due and none may be taken.
local function claim_due()
  local suspected, busy = redis.call('HLEN', crash_marks), redis.call('ZCARD', claimed)
  local any_failed = redis.call('ZCARD', failed) > 0
  local wanted = math.min(tonumber(limit), count)
  local most = wanted + busy + suspected + (options.rate and SKIPPED or 0)
  local ids = prioritized_due and prioritized_due(now, most, max_wait)
    or redis.call('ZRANGEBYSCORE', due, '-inf', seconds(now), 'WITHSCORES', 'LIMIT', 0, most)
  local simple = suspected == 0 and busy == 0 and #ids > 0 and plain_records(ids, any_failed) or {}
  local moved, payloads, size, passed, isolating = 0, 0, 0, false, false

  -- Whether a job does not go with those that were moved; it waits for the next claim.
  local function is_apart(largest)
    return moved > 0 and (isolating ~= (largest ~= nil) or largest and moved >= largest)
  end

  for i = 1, #ids, 2 do
    if moved == wanted or payloads >= count or size >= bytes then
      break
    end
    local record = not (any_long and mark_long(ids[i])) and simple[(i + 1) / 2]
    local mark = suspected > 0 and redis.call('HGET', crash_marks, ids[i])
    local running = not record and busy > 0 and redis.call('ZSCORE', claimed, ids[i])
    local failure = not record and any_failed and redis.call('ZSCORE', failed, ids[i])
    local largest = failure and largest_batch(failure) or nil
    if running or not mark and is_apart(largest) or options.rate and defer_without_token(ids[i], now) then
      mark = nil
    elseif record then
      claim_plain(ids[i], ids[i + 1], record)
      payloads, size, moved = payloads + 1, size + #record, moved + 1
    elseif mark and suspects == '0' then
      passed = true
    elseif mark and moved > 0 then
      break
    else
      local level = mark and read_mark(mark) or 0
      local some, weight =
        claim_job(ids[i], ids[i + 1], level > 1 and 1 or count, failure, level == 3 and condemned(ids[i], mark))
      payloads, size = payloads + some, size + weight
      if some > 0 then
        moved, isolating = moved + 1, largest ~= nil
        wanted = math.min(wanted, largest or wanted)
      end
      if mark and some > 0 then
        return 1
      end
    end
  end
  write_plain()
  return passed and moved == 0 and 2 or 0
end

local kind = tonumber(redis.call('HGET', meta, 'kind') or 0)
if tonumber(request) > latest then
  -- Above all that the owner remembers, too: a Redis with older data must not give a number twice.
  number = math.max(number, tonumber(last)) + 1
  redis.call('HSET', meta, 'request', epoch .. ' ' .. request, 'claim', number)
  for _, id in ipairs(unacknowledged()) do
    local job = take_processing(id)
    restore_unfinished(id, job, job.items, seconds(now))
  end
  kind = shard_paused and 0 or claim_due()
  if options.rate then
    sweep_buckets(now)
  end
  redis.call('HSET', meta, 'kind', kind)
  if payloads_lost and redis.call('ZCOUNT', claimed, number, number) == 0 then
    return redis.error_reply('DAMAGED spill_order')
  end
end

-- No call stores a payload of more bytes than a claim takes: of one that was planted only so much is told that it is
-- known to be too large. It stays whole where it is.
local function shortened(record)
  local _, stop, length = string.find(record, '^%d+@?%d*#?%d? %S+ %-?%d+ (%d+) ')
  if not stop then
    return string.sub(record, 1, bytes + 1)
  end
  local items = unpack_items(string.sub(record, stop + length + 1))
  for _, item in ipairs(items) do
    item[2] = string.sub(item[2], 1, bytes + 1)
  end
  return string.sub(record, 1, stop + length) .. pack_items(items)
end

local reply = {seconds(now), next_due(), number, kind + (errors_differ and ERRORS_DIFFER or 0)}
local batch = plain.processing
if #plain.ids == 0 or #plain.ids < redis.call('ZCOUNT', claimed, number, number) then
  batch = {}
  local ids = redis.call('ZRANGEBYSCORE', claimed, number, number, 'LIMIT', 0, limit)
  local records = #ids > 0 and redis.call('HMGET', processing, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    batch[2 * i - 1], batch[2 * i] = id, records[i] or ''
  end
end
for i, value in ipairs(batch) do
  reply[4 + i] = #value > bytes and shortened(value) or value
end
local unwanted = (options.keep or options.drop_stale) and unwanted_payloads(batch) or {}
if #recorded > 0 or #unwanted > 0 then
  reply[#reply + 1] = first_calls(recorded)
end
if #unwanted > 0 then
  reply[#reply + 1] = unwanted
end
return reply
