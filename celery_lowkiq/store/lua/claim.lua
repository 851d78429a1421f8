-- Moves due jobs of a shard from waiting to processing: no id that is in processing (rule 9), no job of a paused shard. Jobs
-- of earlier claims that the owner does not list as open go back to the queue first.
-- Isolated jobs, whose batch failed as a whole (rules/policies.py), share batches only with each other, and a batch
-- has at most as many jobs as the smallest of their limits.
--
-- ROLE: worker
-- KEYS: lease? meta? @waiting? jobs? spill? spill_order? failed? errors? claimed? processing? crash_marks? calls? arrived? inflight?
-- POLICY KEYS: debounce? early_due? done_scores? buckets?
-- ARGV: owner epoch merge policy request last open limit max_payloads max_bytes suspects max_wait
--   request: grows with each claim of an epoch; a repeated one returns the same batch
--   last, open: the largest claim number that the owner knows, and the numbers of its open claims, or 'any'
--   suspects: '0' skips suspects; otherwise a suspect is a batch of its own
--   max_payloads, max_bytes: limits of one id; a batch that has reached one takes no further id
--   max_wait: s after which a due job precedes more urgent ones
-- USES: meta.format time lease.owner processing.checks waiting.next_due
-- FLAGS: allow-oom
-- Returns: {now, next_due or '', claim number (0 for an old request), kind, [id, processing record]..., first calls, unwanted}
--   kind: 1 when the batch is a suspect, 2 when only suspects are due; plus 4 when keys of failed jobs differ
--   first calls: see `first_calls`; only when jobs with call records were moved, or before `unwanted`
--   unwanted: {id, number of payloads, from the smallest score, that policies drop, ...}, or absent
--   error NOTOWNER <epoch>; error SHARDS 0 or DAMAGED <key> when keys of the shard were lost (store/repairs.py)
-- Cost: O(limit log n + jobs in processing), at most about 2 max_payloads payloads.
if not is_owner() then
  return refuse()
end
local now = now_us()
local payload_limit, byte_limit = tonumber(max_payloads), tonumber(max_bytes)
local known = redis.call('HMGET', meta, 'request', 'claim', 'shards', 'spill_difference', 'format', 'kind')
local damaged, long_payloads, busy = inconsistent_key(known[4])
-- A claim goes on: the caller repairs this afterwards.
local failed_count = redis.call('ZCARD', failed)
local errors_differ = failed_count ~= redis.call('HLEN', errors)
if known[3] and is_foreign(known[5]) then
  return refuse_format(known[5])
elseif not known[3] or damaged then
  return redis.error_reply(damaged and 'DAMAGED ' .. damaged or 'SHARDS 0')
end
-- `kind`: of the last claim.
local last_request, kind
do
  local known_epoch, known_request = string.match(known[1] or '', '^(%d+) (%d+)$')
  last_request, kind = known_epoch == epoch and tonumber(known_request) or 0, tonumber(known[6] or 0)
end
local number = tonumber(known[2] or 0)
if tonumber(request) < last_request then
  return {seconds(now), next_due(), 0, 0}
end

local KIND = {SUSPECT = 1, ONLY_SUSPECTS = 2, ERRORS_DIFFER = 4}
local suspected = redis.call('HLEN', crash_marks)
local wanted = math.min(tonumber(limit), payload_limit)
local is_new = tonumber(request) > last_request
if is_new then
  -- Larger than the owner's last number, too: a Redis with older data must not repeat a number. A claim that arrives late on
  -- such a Redis knows an older one; so the last digits are those of the time, and a settle of the other claim does not end it.
  local times = 1000
  number = (math.floor(math.max(number, tonumber(last)) / times) + 1) * times + now % times
end

local function due_ids(most)
  return redis.call('ZRANGEBYSCORE', due, '-inf', seconds(now), 'WITHSCORES', 'LIMIT', 0, most)
end

-- Plain jobs: arguments of the commands that move them together, as texts because a number costs a conversion each time.
-- Records that no call of ours has written: `large` ones as read, and the part of `cut` ones that the reply has.
local plain = {ids = {}, claimed = {}, processing = {}, large = {}, cut = {}}
local number_text = string.format('%.0f', number)

local function claim_plain(id, perform_in, record)
  local at = #plain.ids + 1
  plain.ids[at] = id
  plain.claimed[2 * at - 1], plain.claimed[2 * at] = number_text, id
  plain.processing[2 * at - 1] = id
  plain.processing[2 * at] = number_text .. ' ' .. perform_in .. ' -1 0 ' .. record
end

local function write_plain(remove)
  if #plain.ids > 0 then
    remove(unpack(plain.ids))
    redis.call('HDEL', jobs, unpack(plain.ids))
    redis.call('ZADD', claimed, unpack(plain.claimed))
    redis.call('HSET', processing, unpack(plain.processing))
  end
end

-- Records of the first jobs, within the bytes of a claim, by position; false for those that are not plain.
local function plain_records(ids, any_failed)
  -- A plain job has one payload without call records; its record moves unchanged, and fits into the reply.
  local function is_plain(record)
    -- Bytes in front of the payloads in the processing record of a plain job, at most.
    local PLAIN_HEAD = 64
    if #record + PLAIN_HEAD > byte_limit then
      return false
    end
    local _, stop, word = string.find(record, '^[%d.]+ (%S*) ')
    local length, flag = string.match(word or '', '^(%d*)([rR]?)')
    return stop and flag == '' and (length == '' or stop + length == #record)
  end

  -- Jobs of the first command; later ones read twice as many as before. So a claim that few jobs fill does not read all due ones.
  local PART = 32
  local names, found, size = {}, {}, 0
  for i = 1, #ids, 2 do
    names[#names + 1] = ids[i]
  end
  while #found < #names and size < byte_limit do
    local from = #found + 1
    local to = math.min(from + math.max(PART, 2 * #found) - 1, #names)
    local records = redis.call('HMGET', jobs, unpack(names, from, to))
    local failures = any_failed and redis.call('ZMSCORE', failed, unpack(names, from, to)) or {}
    for i, record in ipairs(records) do
      size = size + #(record or '')
      found[from + i - 1] = record and not failures[i] and is_plain(record) and record or false
    end
    -- Not read again because that costs Redis more than all else.
    if size > 4194304 then
      for i, record in ipairs(records) do
        plain.large[names[from + i - 1]] = record and #record > 4194304 and record or nil
      end
    end
  end
  return found
end

-- Due jobs and their records, when only plain ones may be due.
local ids, records
if is_new and policy == '' and not any_special and long_payloads + suspected + busy == 0
  and redis.call('EXISTS', due_prioritized, due_paused) == 0 then
  ids = shard_paused and {} or due_ids(wanted)
end
-- Plain jobs are taken before this is compared: by the claim that finds none, the poll of an idle shard, and the next owner.
damaged = not (ids and ids[1]) and inconsistent_index()
if damaged then
  return redis.error_reply('DAMAGED ' .. damaged)
end
if ids then
  records = plain_records(ids, failed_count > 0)
  local count, size = 0, 0
  while records[count + 1] and size < byte_limit do
    count, size = count + 1, size + #records[count + 1]
  end
  if 2 * count == #ids or size >= byte_limit then
    for i = 1, count do
      claim_plain(ids[2 * i - 1], ids[2 * i], records[i])
    end
    redis.call('HSET', meta, 'request', epoch .. ' ' .. request, 'claim', number, 'kind', 0)
    write_plain(due_remove)
    return {seconds(now), next_due(), number, errors_differ and KIND.ERRORS_DIFFER or 0, unpack(plain.processing)}
  end
end

-- USES: processing.checks processing.recover payloads payloads.change crashes.marks policies.keep policies.drop_stale policies.rate_per_id
-- Ids of claimed jobs that have call records, and whether a due job has lost its payloads.
local batch = {recorded = {}, lost = false}

-- Cuts payloads that are larger than max_bytes, which no call stores, to max_bytes + 1 in the reply: enough for the caller to
-- refuse them.
local function shortened(items)
  local short = {}
  for i, item in ipairs(items) do
    short[i] = {item[1], string.sub(item[2], 1, byte_limit + 1), item[3], item[4], item[5]}
  end
  return short
end

-- Moves due jobs. Returns the kind of the batch.
local function claim_due()
  -- Returns CONDEMNED when a mark condemns the payload, and sets its level back to 2, for the next payload of the id.
  local function condemned(id, mark, payload)
    if mark.level == 3 and mark.payload == payload then
      mark.level = 2
      write_mark(id, mark)
      return CONDEMNED
    end
  end

  -- Returns the first payload of a suspect that waits, the first one that its mark names, and whether it looked at all. Looks at
  -- as many as a claim may take.
  local function first_named(id, mark)
    local record, first, count, size = redis.call('HGET', jobs, id), nil, 0, 0
    local from = lex_min(id)
    repeat
      local items, members
      if record == SPILLED then
        items, members = spilled_step(waiting, id, from)
        from = members[1] and '(' .. members[#members]
      else
        items = unpack_items(record or '')
      end
      for _, item in ipairs(items) do
        first, count, size = first or item, count + 1, size + #item[2]
        if mark.names[name_of(item[2])] then
          return first, item, false
        end
      end
    until record ~= SPILLED or not from or count >= payload_limit or size >= byte_limit
    return first, nil, record ~= SPILLED or not from
  end

  -- Reads a mark. Ends it, and returns nil, when none of the payloads that it names waits. `copy` is one that later calls have
  -- moved behind all payloads that were there at the crash: it runs in its old place, too. With `keep`, there is no copy: only
  -- the last payloads of an id count.
  local function standing_mark(id, text)
    local mark = read_mark(text)
    local first, named, all = first_named(id, mark)
    if not first or named == first then
      return mark
    end
    local passed = first[3] > tonumber(mark.last)
    if not named and (all or passed) then
      redis.call('HDEL', crash_marks, id)
      return nil
    end
    if named and passed and mark.level > 1 and not options.keep then
      mark.copy = {named[1], named[2], named[3], '', named[5]}
      if mark.level == 3 then
        mark.level = 2
        write_mark(id, mark)
      end
    end
    return mark
  end

  -- Returns the number of payloads and bytes that were moved.
  local function claim_job(id, perform_in, most, stored_retry_count, mark)
    -- Foreign errors are longer than 256 KiB.
    local message = stored_retry_count and string.sub(redis.call('HGET', errors, id) or '', 1, 262144) or ''
    if stored_retry_count and hooks.run_time then
      perform_in = hooks.run_time(id, perform_in, now)
    end
    local priority = priority_of(id)
    local portion = math.min(most, options.per_run or most)
    local items, more
    if mark and mark.copy then
      items, more = {mark.copy}, true
    else
      items, more = set_take(waiting, id, portion, byte_limit, nil, plain.large[id])
    end
    if more and portion < most then
      -- With its own perform_in, the rest would precede all other jobs of the shard.
      index_put(id, seconds(now), priority)
    elseif #items == 0 and not more then
      batch.lost = true
    elseif not more then
      index_remove(id)
    end
    -- With per_run=1, the retry count belongs to the payload that is claimed: those that stay have none.
    if #items > 0 and (not more or options.per_run == 1) then
      if hooks.clear then
        hooks.clear(id)
      end
      if stored_retry_count then
        redis.call('ZREM', failed, id)
        redis.call('HDEL', errors, id)
      end
    end
    if #items == 0 then
      return 0, 0
    end
    local retry_count = mark and condemned(id, mark, items[1][2]) or
      string.match(stored_retry_count or '', '^%-?%d+%f[%D]%.?%d*$') or '-1'
    local size, last_call = 0, nil
    for _, item in ipairs(items) do
      size = size + #item[2]
      if item[4] ~= '' and not last_call then
        last_call = redis.call('HGET', meta, 'last_call')
        batch.recorded[#batch.recorded + 1] = id
      end
    end
    local head = write_processing(id, number_text, perform_in, retry_count, message, items, last_call, priority)
    if size > 4194304 then
      plain.cut[id] = head .. pack_items(shortened(items))
    end
    if hooks.claimed then
      hooks.claimed({id}, now)
    end
    return #items, size
  end

  -- Repairs an id whose record was lost with its mark SPILLED, and for which pushes began a packed record: moves that into the
  -- spilled set, and marks the id again. Returns true if it did.
  local function repair_spill_mark(id)
    local record = plain.large[id] or redis.call('HGET', jobs, id)
    if record and record ~= SPILLED and redis.call('ZLEXCOUNT', spill_order, lex_min(id), lex_max(id)) > 0 then
      local items = unpack_items(record)
      redis.call('HSET', jobs, id, SPILLED)
      add_extra(waiting, -#items)
      spill_items(waiting, id, items, false)
      return true
    end
  end

  -- Maximum number of jobs in the next batch of an isolated job, by the fraction of its retry_count (rule 5,
  -- rules/policies.py): '<retry_count>.<largest batch><parts>', three digits each. nil for other jobs.
  local function largest_batch(retry_count)
    local fraction = math.floor(tonumber(retry_count) % 1 * 1000000 + 0.5)
    return fraction >= 1000 and math.floor(fraction / 1000) or nil
  end

  -- Jobs beyond the wanted ones that a claim reads when a policy may defer jobs.
  local DEFERRED = 100
  suspected, busy = redis.call('HLEN', crash_marks), redis.call('ZCARD', claimed)
  local any_failed = redis.call('ZCARD', failed) > 0
  local most = wanted + busy + suspected + (hooks.defer and DEFERRED or 0)
  ids = ids or prioritized_due and prioritized_due(now, most, max_wait) or due_ids(most)
  records = records or suspected == 0 and busy == 0 and plain_records(ids, any_failed) or {}
  local moved, payloads, size, suspects_skipped, isolating = 0, 0, 0, false, false

  -- Returns true for a job that cannot join the batch.
  local function is_apart(largest)
    return moved > 0 and (isolating ~= (largest ~= nil) or largest and moved >= largest)
  end

  for i = 1, #ids, 2 do
    if moved == wanted or payloads >= payload_limit or size >= byte_limit then
      break
    end
    local repaired = long_payloads > 0 and repair_spill_mark(ids[i])
    local record = not repaired and priority_of(ids[i]) == 0 and records[(i + 1) / 2]
    local mark = suspected > 0 and redis.call('HGET', crash_marks, ids[i])
    local running = not record and busy > 0 and redis.call('ZSCORE', claimed, ids[i])
    local stored_retry_count = not record and any_failed and redis.call('ZSCORE', failed, ids[i])
    local largest = stored_retry_count and largest_batch(stored_retry_count) or nil
    if mark and not running and moved == 0 and suspects ~= '0' then
      mark = standing_mark(ids[i], mark)
    end
    local stays = running or not mark and is_apart(largest) or hooks.defer and hooks.defer(ids[i], now)
    if stays then
      -- A later claim takes it.
    elseif record then
      claim_plain(ids[i], ids[i + 1], record)
      payloads, size, moved = payloads + 1, size + #record, moved + 1
    elseif mark and suspects == '0' then
      suspects_skipped = true
    elseif mark and moved > 0 then
      break
    else
      local most = mark and mark.level > 1 and 1 or payload_limit
      local some, weight = claim_job(ids[i], ids[i + 1], most, stored_retry_count, mark)
      payloads, size = payloads + some, size + weight
      if some > 0 then
        moved, isolating = moved + 1, largest ~= nil
        wanted = math.min(wanted, largest or wanted)
      end
      if mark and some > 0 then
        return KIND.SUSPECT
      end
    end
  end
  write_plain(index_remove)
  if hooks.claimed and #plain.ids > 0 then
    hooks.claimed(plain.ids, now)
  end
  return suspects_skipped and moved == 0 and KIND.ONLY_SUSPECTS or 0
end

if is_new then
  redis.call('HSET', meta, 'request', epoch .. ' ' .. request, 'claim', number, 'kind', 0)
  for _, id in ipairs(unacknowledged(open)) do
    recover(id, take_processing(id), seconds(now))
  end
  kind = shard_paused and 0 or claim_due()
  if hooks.after_claim then
    hooks.after_claim(now)
  end
  if kind ~= 0 then
    redis.call('HSET', meta, 'kind', kind)
  end
  count_payloads(waiting)
  if batch.lost and redis.call('ZCOUNT', claimed, number, number) == 0 then
    return redis.error_reply('DAMAGED spill_order')
  end
end

local function answer()
  -- Reads the first records of claimed jobs.
  -- Returns {id, '1' when it has more, {member, ...}, ...}. Python sorts the members by payload, and reads the others page by
  -- page.
  local function first_calls(ids)
    local RECORDS, RECORDS_OF_CLAIM = 100, 1000
    local reply, left = {}, RECORDS_OF_CLAIM
    for _, id in ipairs(ids) do
      local most = math.min(RECORDS, left)
      -- The claim has moved its jobs, so an error must not end it. Python meets the error when it reads the other records.
      local found = redis.pcall('ZRANGEBYLEX', calls, lex_min(id), lex_max(id), 'LIMIT', 0, most + 1)
      local more = found.err or #found > most
      found[most + 1], found.err = nil, nil
      left = left - #found
      for _, value in ipairs({id, more and '1' or '0', found}) do
        reply[#reply + 1] = value
      end
    end
    return reply
  end

  -- The record of a claim that is sent again, with its payloads cut.
  local function shortened_record(record)
    local _, stop, length = string.find(record, '^%d+%f[%D]@?%d*%f[%D]#?%d? %S+ %-?%d+ (%d+) ')
    if not stop then
      return string.sub(record, 1, byte_limit + 1)
    end
    return pack_items(shortened(unpack_items(record, stop + length + 1)), string.sub(record, 1, stop + length))
  end

  local values = {seconds(now), next_due(), number, kind + (errors_differ and KIND.ERRORS_DIFFER or 0)}
  local taken = plain.processing
  if #plain.ids == 0 or #plain.ids < redis.call('ZCOUNT', claimed, number, number) then
    taken = {}
    local ids = redis.call('ZRANGEBYSCORE', claimed, number, number, 'LIMIT', 0, limit)
    local records = #ids > 0 and not next(plain.cut) and redis.call('HMGET', processing, unpack(ids))
    for i, id in ipairs(ids) do
      local record = plain.cut[id] or records and records[i] or not records and redis.call('HGET', processing, id)
      taken[2 * i - 1], taken[2 * i] = id, record or ''
    end
  end
  for i, value in ipairs(taken) do
    values[4 + i] = #value > byte_limit and shortened_record(value) or value
  end
  local unwanted = {}
  for i = 1, hooks.unwanted and #taken or 0, 2 do
    local count = hooks.unwanted(taken[i], read_processing(taken[i + 1]).items)
    if count > 0 then
      unwanted[#unwanted + 1], unwanted[#unwanted + 2] = taken[i], count
    end
  end
  if #batch.recorded > 0 or #unwanted > 0 then
    values[#values + 1] = first_calls(batch.recorded)
  end
  if #unwanted > 0 then
    values[#values + 1] = unwanted
  end
  return values
end

return answer()
