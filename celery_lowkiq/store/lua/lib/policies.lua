-- Policies: what the task of the queue asks for beyond the rules of a job, and the places at which scripts apply it.
--
-- KEYS: due_prioritized
-- ARGV: policy
-- policy: '<name>=<value> ...'; '' without policies.
-- Each policy but that of priorities is a part of this file. Where its option is given, it probes its keys and adds its functions to places.
-- A script names the policies that act in it under USES. A place without a function costs a look into a table.
--
-- The places, and what their functions get and return:
--   split_priority(when)              push: priority of a call, and its time without the priority
--   refusal(last_job, now_s)          push: error reply, before the first write; nil accepts
--   drops_call(id, score, flag, waits)  push: true to drop a call; `waits`: whether a job of the id is waiting
--   due_after_call(id, waits, asked_for, now)  push: perform_in of a job that has not failed; nil keeps it
--   retry_after_call(id, time)        push: perform_in of a job that waits for its retry; nil keeps it
--   join_debounce(id, entry, later, due_at)  import_jobs: perform_in of a job with calls in two shards
--   trim(id, items)                   after items were added to waiting ones: drops payloads; true when an item stays
--   clear(id)                         a waiting job was removed, or replaced by a restored one
--   restored(id, job, time)           a claimed job that has not ended waits again, due at `time`
--   defer(id, now)                    claim: moves a due job to a later time and returns true, or false
--   run_time(id, perform_in, now)     claim: perform_in of a claimed job that has failed
--   claimed(ids, now)                 claim: jobs were claimed
--   unwanted(id, items)               claim: number of payloads, from the smallest score, that are claimed only to end
--                                     their calls
--   after_claim(now)                  claim: bounded cleaning
--   return_time(job, now)             settle: perform_in of a job that is returned; nil keeps it
--   not_run(id)                       settle: a claimed job was not run
--   done(id, score)                   settle: payloads up to the score were processed
--   after_settle()                    settle: bounded cleaning
--   died(id, at)                      settle, acquire: payloads of the id went to the morgue
--   done_score(id)                    score below which payloads of an id are stale; nil without one
-- The options priority, retry_priority, per_run and anew_on_push are values, which scripts read where they act.
local options, hooks = {}, {}
if policy ~= '' then
  for name, value in string.gmatch(policy, '%f[%a_]([%a_]+)=(%S+)') do
    options[name] = tonumber(value) or value
  end
end

-- Adds a policy's function to a place. It is skipped when a function before it returns an answer.
local function add_hook(place, hook)
  local former = hooks[place]
  hooks[place] = former and function(...)
    return former(...) or hook(...)
  end or hook
end

-- Policies priority and retry_priority: where jobs with a priority wait. `prioritized`: calls of this push have one.
if options.prioritized or options.priority or options.retry_priority then
  redis.call('ZCARD', due_prioritized)
end
if options.prioritized then
  function hooks.split_priority(when)
    return tonumber(string.sub(when, 1, 1)), string.sub(when, 3)
  end
end

-- PART: keep
-- Policy keep: a waiting job keeps the payloads with the highest scores.
--
-- KEYS: meta jobs spill spill_order
-- USES: policies payloads waiting.jobs
-- A payload that has call records stays until a claim drops it (place unwanted), so that its calls get a result.
if options.keep then
  -- Number of payloads of a waiting job.
  local function size_of(id)
    return set_size({records = jobs, spill_order = spill_order}, id)
  end

  local function trim_packed(id, record)
    local items, gone, rest = unpack_items(record), {}, {}
    local excess = #items - options.keep
    for i, item in ipairs(items) do
      gone[item[2]] = i <= excess
      if i > excess or item[4] ~= '' then
        rest[#rest + 1] = item
      end
    end
    if #rest < #items then
      redis.call('HSET', jobs, id, pack_items(rest))
      redis.call('HINCRBY', meta, 'dropped', #items - #rest)
      add_extra(waiting, #rest - #items)
    end
    return gone
  end

  local function position_in(id, payload)
    local place = redis.call('HGET', spill, id .. '\0' .. payload)
    local member = place and id .. '\0' .. place .. payload
    return member and redis.call('ZRANK', spill_order, member), member
  end

  -- Earlier calls have dropped what is below the payloads to keep, except recorded ones. Each new item has moved at most one
  -- more below them. STEP more are read, for a task that keeps less than before.
  local function trim_spilled(id, items)
    local gone, dropped, excess = {}, 0, size_of(id) - options.keep
    if excess <= 0 then
      return gone
    end
    local first = redis.call('ZLEXCOUNT', spill_order, '-', '(' .. id .. '\0')
    local stop = first + excess
    local members = redis.call('ZRANGE', spill_order, math.max(first, stop - #items - STEP), stop - 1)
    for _, item in ipairs(items) do
      local rank, member = position_in(id, item[2])
      if rank and rank < stop then
        gone[item[2]] = true
        members[#members + 1] = member
      end
    end
    for _, member in ipairs(members) do
      local item = member_item(id, member)
      if item[4] == '' and redis.call('ZREM', spill_order, member) == 1 then
        redis.call('HDEL', spill, id .. '\0' .. item[2])
        dropped = dropped + 1
      end
    end
    if dropped > 0 then
      redis.call('HINCRBY', meta, 'dropped', dropped)
    end
    return gone
  end

  function hooks.trim(id, items)
    local record = redis.call('HGET', jobs, id) or ''
    local gone = record == SPILLED and trim_spilled(id, items) or trim_packed(id, record)
    for _, item in ipairs(items) do
      if not gone[item[2]] then
        return true
      end
    end
    return false
  end

  function hooks.unwanted(id, items)
    return math.max(0, math.min(#items + size_of(id) - options.keep, #items))
  end
end

-- PART: per_run
-- Policy per_run = 1: each payload runs alone, so the failure of a waiting job is that of its first payload. It does not pass to
-- a payload that gets in front of that one.
--
-- KEYS: jobs spill_order failed errors
-- USES: policies payloads waiting.jobs
local function first_payload(id)
  local record = redis.call('HGET', jobs, id)
  if record == SPILLED then
    local member = redis.call('ZRANGEBYLEX', spill_order, lex_min(id), lex_max(id), 'LIMIT', 0, 1)[1]
    return member and member_item(id, member)[2]
  end
  local item = record and unpack_items(record)[1]
  return item and item[2]
end

-- The payload that has failed, of a waiting job; nil without one.
local function failed_payload(id)
  return options.per_run == 1 and redis.call('ZSCORE', failed, id) and first_payload(id) or nil
end

-- The payloads of a waiting job have not failed, and it keeps its perform_in.
local function forget_failure(id)
  if redis.call('ZREM', failed, id) == 1 then
    redis.call('HDEL', errors, id)
    if hooks.clear then
      hooks.clear(id)
    end
  end
end

-- Forgets the failure of a payload (nil: none) when it is not the first one any more.
local function forget_if_passed(id, payload)
  if payload and first_payload(id) ~= payload then
    forget_failure(id)
  end
end

-- PART: drop_stale
-- Policy drop_stale: drops payloads with a smaller score than one that was processed for their id.
--
-- KEYS: meta done_scores
-- USES: policies policies.keep time meta.old_fields
-- `done_scores` has the highest score that was processed with success, and when: '<score> <s>'.
if options.drop_stale then
  redis.call('HLEN', done_scores)

  function hooks.done_score(id)
    local score, at = string.match(redis.call('HGET', done_scores, id) or '', '^(%S+) (%d+)$')
    if score and tonumber(at) + options.drop_stale > now_us() / 1000000 then
      return tonumber(score)
    end
  end

  -- A claim drops a payload that has call records, so that its calls get a result, unless it would need the place of
  -- another job.
  add_hook('drops_call', function(id, score, flag, waits)
    local done_score = (flag == '' or options.max_length and not waits) and hooks.done_score(id)
    return done_score and tonumber(score) < done_score
  end)

  local unwanted = hooks.unwanted
  function hooks.unwanted(id, items)
    local count, done_score = unwanted and unwanted(id, items) or 0, hooks.done_score(id)
    while done_score and items[count + 1] and items[count + 1][3] < done_score do
      count = count + 1
    end
    return count
  end

  function hooks.done(id, score)
    local done_score = hooks.done_score(id)
    if not done_score or done_score <= tonumber(score) then
      redis.call('HSET', done_scores, id, score .. ' ' .. math.floor(now_us() / 1000000))
    end
  end

  -- All scores expire when the shard processes nothing for `drop_stale` s.
  function hooks.after_settle()
    delete_old_fields(done_scores, 'done_scores_cursor', now_us() / 1000000 - options.drop_stale)
    redis.call('EXPIRE', done_scores, math.ceil(options.drop_stale))
  end
end

-- PART: max_length
-- Policies max_length and when_full: what happens to a call for which the shard has no place.
--
-- KEYS: meta jobs tries processing
-- USES: policies policies.drop_stale waiting.jobs waiting.index processing.orphans
local evicted
if options.max_length then
  evicted = {}
  local EVICTION_CANDIDATES = 16
  local length = redis.call('ZCARD', due) + redis.call('ZCARD', due_prioritized)
  if any_paused then
    length = length + redis.call('ZCARD', due_paused)
  end
  if any_moving then
    length = length + redis.call('ZCARD', moving)
  end
  if options.when_full == 'drop_oldest' then
    redis.call('HLEN', tries)
  end

  -- Counts ids of the jobs up to last_job that have no waiting job and at least one call that is not stale.
  local function new_ids(last_job, now_s)
    local new, seen = 0, {}
    for i = rest, last_job, 4 do
      local id, score = ARGV[i], ARGV[i + 2]
      local done_score = not seen[id] and hooks.done_score and hooks.done_score(id)
      if not seen[id] and not (done_score and tonumber(string.match(score, '^~?(.+)') or now_s) < done_score) then
        new = new + 1 - redis.call('HEXISTS', jobs, id)
        seen[id] = true
      end
    end
    return new
  end

  if options.when_full == 'refuse' then
    function hooks.refusal(last_job, now_s)
      local new = new_ids(last_job, now_s)
      if new > 0 and length + new > options.max_length then
        return redis.error_reply('FULL ' .. length .. ' ' .. options.max_length)
      end
    end
  end

  local function any_recorded(items)
    for _, item in ipairs(items) do
      if item[4] ~= '' then
        return true
      end
    end
  end

  -- Drops the job with the smallest perform_in among the candidates that are not spilled, those of priority 0 and those
  -- that are being moved last.
  local function evict()
    local ids = any_prioritized and redis.call('ZRANGE', due_prioritized, 0, EVICTION_CANDIDATES - 1) or {}
    for _, index in ipairs({due, any_moving and moving or nil}) do
      for _, id in ipairs(redis.call('ZRANGE', index, 0, EVICTION_CANDIDATES - 1)) do
        ids[#ids + 1] = id
      end
    end
    for _, id in ipairs(ids) do
      local record = redis.call('HGET', jobs, id)
      if record ~= SPILLED then
        local items = unpack_items(record or '')
        redis.call('HDEL', jobs, id)
        add_extra(waiting, record and 1 - #items or 0)
        remove_waiting(id)
        redis.call('HDEL', tries, id)
        redis.call('HINCRBY', meta, 'dropped', #items)
        if any_recorded(items) then
          add_orphan(evicted, id, redis.call('HGET', meta, 'last_call'))
        end
        return true
      end
    end
  end

  add_hook('drops_call', function(id, score, flag, waits)
    if waits then
      return false
    elseif options.when_full == 'refuse' or length < options.max_length then
      length = length + 1
      return false
    end
    return options.when_full ~= 'drop_oldest' or not evict()
  end)
end

-- PART: rate_per_id
-- Policy rate_per_id: each run takes a token from the bucket of its id.
--
-- KEYS: buckets
-- USES: policies time.delay waiting.index
-- `buckets` has the time at which a bucket is full again (us). A bucket without entry, or with a past time, is full.
if options.rate then
  local REMOVED = 16
  local interval = math.min(1 / options.rate, LONGEST) * 1000000
  local ahead = (options.burst - 1) * interval
  redis.call('ZCARD', buckets)

  local function text(us)
    return string.format('%.0f', us)
  end

  local function full_at(id)
    return tonumber(redis.call('ZSCORE', buckets, id) or '')
  end

  -- Without a token, the job is due when its bucket has one.
  function hooks.defer(id, now)
    local full = full_at(id)
    if not full or full - ahead <= now then
      return false
    end
    index_put(id, seconds(math.ceil(full - ahead)), priority_of(id))
    return true
  end

  add_hook('claimed', function(ids, now)
    for _, id in ipairs(ids) do
      redis.call('ZADD', buckets, text(math.max(now, full_at(id) or 0) + interval), id)
    end
  end)

  -- Returns the token.
  function hooks.not_run(id)
    if full_at(id) then
      redis.call('ZINCRBY', buckets, text(-interval), id)
    end
  end

  -- Removes some full buckets. All of them expire when no job runs until they are full.
  function hooks.after_claim(now)
    local full = redis.call('ZRANGEBYSCORE', buckets, '-inf', text(now), 'LIMIT', 0, REMOVED)
    if #full > 0 then
      redis.call('ZREM', buckets, unpack(full))
    end
    redis.call('PEXPIRE', buckets, text(math.min(LONGEST, options.burst / options.rate) * 1000 + 1000))
  end
end

-- PART: hold
-- Policy hold: a death holds its id, behind which at most `hold` payloads may wait.
--
-- KEYS: jobs spill_order
-- USES: policies waiting.holds payloads
if options.hold then
  -- Keys of another type are found before the first write.
  redis.call('ZCARD', paused)
  redis.call('ZCARD', due_paused)

  hooks.died = begin_hold

  add_hook('refusal', function(last_job)
    local new = {}
    for i = rest, any_paused and last_job or 0, 4 do
      new[ARGV[i]] = (new[ARGV[i]] or 0) + 1
    end
    for id, count in pairs(new) do
      local length = pause_of(id) and set_size({records = jobs, spill_order = spill_order}, id)
      if length and length + count > options.hold then
        return redis.error_reply('FULL ' .. length .. ' ' .. options.hold .. ' ' .. id)
      end
    end
  end)
end

-- PART: due
-- Policies that change when a job is due.
--
-- KEYS: debounce early_due
-- USES: policies time waiting.index
-- Policies debounce and debounce_max: each call moves its job to `debounce` s after it, at most `debounce_max` s after the
-- first call.
-- An entry is '<time of the first call (us)> <earliest perform_in>'. It exists while only calls have set the job's time.
if options.debounce then
  redis.call('HLEN', debounce)

  function hooks.due_after_call(id, waits, asked_for, now)
    local entry = waits and redis.call('HGET', debounce, id)
    if waits and not entry then
      return nil
    end
    local first, earliest = string.match(entry or '', '^(%d+) (%S+)$')
    first = tonumber(first) or now
    earliest = tonumber(earliest or 0) > tonumber(asked_for) and earliest or asked_for
    redis.call('HSET', debounce, id, string.format('%.0f ', first) .. earliest)
    local latest = options.debounce_max and first + options.debounce_max * 1000000 or math.huge
    local due_at = seconds(math.min(now + options.debounce * 1000000, latest))
    return tonumber(earliest) > tonumber(due_at) and earliest or due_at
  end

  -- Joins the entry of an id with that of later calls in another shard, which are due at `due_at`. Returns the perform_in of
  -- the job.
  function hooks.join_debounce(id, entry, later, due_at)
    local first, earliest = string.match(entry, '^(%d+) (%S+)$')
    local asked_for = string.match(later, '^%d+ (%S+)$') or '0'
    earliest = tonumber(earliest or 0) > tonumber(asked_for) and earliest or asked_for
    redis.call('HSET', debounce, id, (first or '0') .. ' ' .. earliest)
    if first and options.debounce_max then
      due_at = seconds(math.min(tonumber(due_at) * 1000000, first + options.debounce_max * 1000000))
    end
    return tonumber(earliest) > tonumber(due_at) and earliest or due_at
  end

  add_hook('clear', function(id)
    redis.call('HDEL', debounce, id)
  end)

  add_hook('claimed', function(ids)
    redis.call('HDEL', debounce, unpack(ids))
  end)
end

-- Policy when_pushed_after_failure = now: a call makes a job that waits for its retry due early.
-- `early_due` has the job's own perform_in, which counts again when the early run fails or does not end.
if options.due_on_push then
  redis.call('HLEN', early_due)

  function hooks.retry_after_call(id, time)
    local own = index_score(id)
    if own and tonumber(own) > tonumber(time) then
      redis.call('HSETNX', early_due, id, own)
      return time
    end
  end

  add_hook('clear', function(id)
    redis.call('HDEL', early_due, id)
  end)

  function hooks.run_time(id, perform_in, now)
    local own = redis.call('HGET', early_due, id)
    return own and tonumber(own) > now / 1000000 and own or perform_in
  end

  -- An early run that did not take place is due again.
  function hooks.return_time(job, now)
    return tonumber(job.retry_count) >= 0 and tonumber(job.perform_in) > now / 1000000 and seconds(now) or nil
  end

  function hooks.restored(id, job, time)
    if tonumber(job.retry_count) >= 0 and tonumber(job.perform_in) > tonumber(time) then
      redis.call('HSET', early_due, id, job.perform_in)
    end
  end
end
