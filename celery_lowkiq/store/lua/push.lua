-- Merges jobs into the waiting jobs of a shard (rule 2). Repeated: no effect.
--
-- ROLE: caller
-- KEYS: meta? senders? @waiting jobs spill spill_order calls? failed errors processing tries?
-- POLICY KEYS: debounce? early_due? done_scores? inflight? arrived?
-- ARGV: shards merge policy sender n channel index signatures records [id payload score when]... [position digest record]*records
--   shards: the route of the sender: the stored count, or both counts of a migration; n: larger than that of each former push of the sender to the shard
--   score: '' generates one; '~<s>': the time of a sender's clock, generated when Redis's clock is behind it
--   when: '' for now, '+<s>' for a delay, else Unix s; with policy prioritized=1, '<priority> ' before that
--   policy arriving=<index>,...: in a migration, the jobs, from 0, whose ids may have more in another shard
--   signatures: '', or those of all payloads, 24 bytes each (rules/signatures.py)
--   records: number of call records; position: index of the call's job, from 0; digest: of its payload
-- USES: meta.format
-- Returns: 1; 0 for a repeated n; or, when policies dropped calls that have records, the positions of dropped calls in one
--   text, then orphans (see lib/processing.lua), the same when repeated; error SHARDS <stored route> when the route differs,
--   or FULL <length> <allowed>, with the id when that is held.
-- Cost: O(log n) a job, and the size of the packed record of its id.
local RETENTION = 3600
-- Jobs of one command: `unpack` takes a limited number of values.
local UNPACKED = 1000

local stored = redis.call('HMGET', meta, 'shards', 'score', 'format')
if stored[1] and is_foreign(stored[3]) then
  return refuse_format(stored[3])
end

-- Reads the reply of a push that dropped calls from its text (drops_text).
local function drops_reply(text)
  local reply = {string.match(text, '^[%d ]*')}
  local at = #reply[1] + 1
  while at <= #text do
    local _, stop, length = string.find(text, '^\n(%d+) ', at)
    at = stop + 1 + length
    reply[#reply + 1] = string.sub(text, stop + 1, at - 1)
  end
  return reply
end

-- '<n> <s>', or, when calls were dropped, '<n> <text of the reply>|<s>'.
local last = redis.call('HGET', senders, sender)
if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then
  local of, text = string.match(last, '^(%d+) (.*)|%d+$')
  return of == n and drops_reply(text) or 0
end
-- After the check above: what was stored before the number of shards changed is not stored again in another shard.
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end

-- USES: time.delay meta.begin_format meta.old_fields waiting.due waiting.wake
-- Stores records of calls.
-- A call whose result or headers are needed later has a record: a member of the sorted set `calls`, whose scores are all 0.
-- A member is id, \0, digest of the payload (10 bytes), number of the record in the shard (12 hex digits), record. It stays
-- while its payload is claimed, restored or recovered; the owner of the shard deletes it after it has stored the result.
local NONE = {}

-- The flags of jobs with records, by the index of the job in ARGV. The records follow the last job.
local function call_flags(last_job)
  if last_job == #ARGV then
    return NONE
  end
  local flags = {}
  for i = last_job + 1, #ARGV, 3 do
    flags[rest + 4 * ARGV[i]] = 'R'
  end
  return flags
end

-- Stores the records. Returns the stored members by the index of the job in ARGV.
local function record_calls(last_job)
  if last_job == #ARGV then
    return NONE
  end
  redis.call('ZCARD', calls)
  local members = {}
  local number = redis.call('HINCRBY', meta, 'last_call', (#ARGV - last_job) / 3) - (#ARGV - last_job) / 3
  for i = last_job + 1, #ARGV, 3 do
    local job = rest + 4 * ARGV[i]
    number = number + 1
    members[job] = ARGV[job] .. '\0' .. ARGV[i + 1] .. string.format('%012x', number) .. ARGV[i + 2]
    redis.call('ZADD', calls, 0, members[job])
  end
  return members
end

local now = now_us()
local now_s = seconds(now)
local score_us = tonumber(stored[2] or 0)
local last_job = #ARGV - 3 * records
local flags = call_flags(last_job)
local merged = 0

-- The signature of the payload of the job in ARGV from `i` on.
local function signature_of(i)
  return signatures == '' and '' or string.sub(signatures, 6 * (i - rest) + 1, 6 * (i - rest) + 24)
end

local function score_of(given)
  local sent = given ~= '' and string.match(given, '^~(.+)')
  if given == '' or sent and tonumber(sent) * 1000000 > now then
    score_us = math.max(now, score_us + 1)
    return score_us == now and now_s or seconds(score_us)
  end
  return sent or given
end

local function time_of(when)
  if when == '' then
    return now_s
  end
  return string.sub(when, 1, 1) == '+' and delayed(now, when) or due_from(now, when)
end

-- Sorts the jobs in ARGV from `from` to `to`:
--   times: perform_in and id of each
--   new: ids without a waiting job and the records of their first payloads, which need no merging
--   soonest: the smallest perform_in of these
--   ids, items: the other ids, and by id the items to merge; given: a score that a call of them has, or ''
local function sort_jobs(from, to)
  local times, new, first, soonest, ids, items = {}, {}, {}, nil, {}, {}
  for i = from, to, 4 do
    times[#times + 1] = ARGV[i]
  end
  local records = redis.call('HMGET', jobs, unpack(times))
  for place, record in ipairs(records) do
    local i = from + 4 * (place - 1)
    local id, payload, score, flag = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2]), flags[i] or ''
    local time, signature = time_of(ARGV[i + 3]), signature_of(i)
    times[2 * place - 1], times[2 * place] = time, id
    if not record and not first[id] then
      first[id] = true
      if time ~= soonest and (not soonest or tonumber(time) < tonumber(soonest)) then
        soonest = time
      end
      new[#new + 1], new[#new + 2] = id, score .. ' ' .. flag .. signature .. ' ' .. payload
    else
      merged = merged + 1
      if not items[id] then
        items[id], ids[#ids + 1] = {given = '', record = record or nil}, id
      end
      items[id].given = ARGV[i + 2] ~= '' and ARGV[i + 2] or items[id].given
      table.insert(items[id], {score, payload, tonumber(score), flag, signature})
    end
  end
  return {times = times, new = new, soonest = soonest, ids = ids, items = items}
end

local function write_new(part, add)
  add(part.times)
  if #part.new > 0 then
    redis.call('HSET', jobs, unpack(part.new))
  end
end

-- Writes what a push changes beside its jobs, before these. Returns the members in `calls`, by the index of the job in ARGV.
local function begin()
  -- First because it ends the script when `calls` is of another type.
  local members = record_calls(last_job)
  if signatures ~= '' then
    begin_signatures(stored[3])
  end
  redis.call('HSET', senders, sender, n .. ' ' .. math.floor(now / 1000000))
  return members
end

local function finish()
  redis.call('HSET', meta, 'score', string.format('%.0f', score_us))
  if merged > 0 then
    redis.call('HINCRBY', meta, 'merged', merged)
  end
  -- Each new sender deletes some senders without a push for an hour.
  if not last then
    delete_old_fields(senders, 'senders_cursor', now / 1000000 - RETENTION)
  end
end

-- Most pushes: no policy, no paused id or priority in the shard, no migration, and no id with a waiting job.
local sorted = policy == '' and not any_special and last_job < rest + 4 * UNPACKED and sort_jobs(rest, last_job)
local is_first = sorted and sorted.soonest and redis.call('ZCOUNT', due, '-inf', sorted.soonest) == 0
if sorted and #sorted.ids == 0 then
  begin()
  write_new(sorted, due_add)
  finish()
  if is_first then
    wake()
  end
  return 1
end

-- In a migration, calls may bring jobs that no claim takes before a mover has sorted them.
any_moving = any_moving or string.find(policy, 'arriving=', 1, true) ~= nil

-- USES: waiting.index payloads.change waiting.jobs policies policies.per_run policies.keep policies.drop_stale policies.max_length policies.hold policies.due
-- Lists the calls that policies dropped, for the reply of a push: positions of its own dropped calls, then orphans.
-- The sender's entry keeps the reply as text, for a repeated push: positions in a line, then each value behind its
-- length. The processing records are those of the eviction: a payload that was in processing then may be waiting again
-- when the push is repeated, and its calls with it.
local drop_call, drops_text
if hooks.drops_call then
  local positions = {}
  evicted = evicted or {}

  -- Drops the call of the job in ARGV from `i` on, with its record.
  function drop_call(i, record)
    redis.call('HINCRBY', meta, 'dropped', 1)
    if record then
      redis.call('ZREM', calls, record)
      positions[#positions + 1] = (i - rest) / 4
    end
  end

  -- The reply as text; '' when no call with a record was dropped.
  function drops_text()
    if #positions + #evicted == 0 then
      return ''
    end
    local parts = {table.concat(positions, ' ')}
    for _, value in ipairs(evicted) do
      parts[#parts + 1] = #value .. ' ' .. value
    end
    return table.concat(parts, '\n')
  end
end

local refusal = hooks.refusal and hooks.refusal(last_job, now_s)
if refusal then
  return refusal
end
local before = not sorted and first_due()
local members = begin()

local hold_arriving
if options.arriving then
  redis.call('ZCARD', inflight)
  redis.call('ZCARD', arrived)
  -- Jobs whose ids may have more in another shard, by their index in ARGV.
  local arrives = {}
  for position in string.gmatch(options.arriving, '%d+') do
    arrives[rest + 4 * position] = true
  end

  -- A new job of such an id waits until a mover has asked the other shard; one that is in processing here was asked for,
  -- unless it was so at the fence: then also a job waits that it has left.
  function hold_arriving(i, when)
    local id = ARGV[i]
    local ran, waits = arrives[i] and redis.call('ZSCORE', inflight, id), redis.call('HEXISTS', jobs, id) == 1
    if ran and waits then
      hold(id)
    elseif arrives[i] and not waits and (ran or redis.call('HEXISTS', processing, id) == 0) then
      index_hold(id, time_of(when))
      redis.call('ZADD', arrived, 0, id)
    end
  end
end

-- The payload of the id that has failed, when a call with this score may get in front of it.
local function passable(id, given)
  return (given ~= '' or merge == 'max') and failed_payload(id) or nil
end

-- Adds items of calls to the waiting job of an id. A payload that runs alone saves no run, unless the job has an equal one.
local function merge_items(id, items, record)
  local grown = set_add(waiting, id, items, false, record)
  if options.per_run == 1 then
    merged = merged - grown
  end
end

local function merge_jobs(part)
  write_new(part, index_add)
  for _, id in ipairs(part.ids) do
    local items = part.items[id]
    local payload = passable(id, items.given)
    for _, item in ipairs(payload and items or {}) do
      merge_items(id, {item})
      forget_if_passed(id, payload)
    end
    if not payload then
      merge_items(id, items, items.record)
    end
  end
end

local drops = ''
if any_prioritized or next(hooks) or options.anew_on_push then
  -- The perform_in of a job after one more call; nil or false keeps it.
  local function due_after_call(id, waits, when)
    local time = time_of(when)
    if waits and redis.call('ZSCORE', failed, id) then
      return hooks.retry_after_call and hooks.retry_after_call(id, time)
    elseif hooks.due_after_call then
      return hooks.due_after_call(id, waits, when ~= '' and time or '0', now)
    end
    return not waits and time
  end

  -- Merges the job in ARGV from `i` on.
  local function merge_job(i)
    local id, payload, score, flag = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2]), flags[i] or ''
    local priority, when = 0, ARGV[i + 3]
    if hooks.split_priority then
      priority, when = hooks.split_priority(when)
    end
    local record = redis.call('HGET', jobs, id)
    local waits = record and true
    if hooks.drops_call and hooks.drops_call(id, score, flag, waits) then
      return drop_call(i, members[i])
    end
    local items = {{score, payload, tonumber(score), flag, signature_of(i)}}
    local failed_one = waits and passable(id, ARGV[i + 2])
    if hold_arriving then
      hold_arriving(i, when)
    end
    local grown = set_add(waiting, id, items, false, record)
    if hooks.trim and not hooks.trim(id, items) then
      return
    end
    -- A payload that runs alone saves no run, unless the job has an equal one.
    merged = merged + (waits and (options.per_run ~= 1 or grown == 0) and 1 or 0)
    priority = waits and math.min(priority, priority_of(id)) or priority
    local due_at = due_after_call(id, waits, when)
    if not due_at and any_prioritized and priority ~= priority_of(id) then
      due_at = index_score(id)
    end
    if due_at then
      index_put(id, due_at, priority)
    end
    forget_if_passed(id, failed_one)
    if waits and options.anew_on_push then
      forget_failure(id)
    end
  end

  for i = rest, last_job, 4 do
    merge_job(i)
  end
  drops = drops_text and drops_text() or ''
else
  for i = rest, hold_arriving and last_job or 0, 4 do
    hold_arriving(i, ARGV[i + 3])
  end
  for i = rest, last_job, 4 * UNPACKED do
    merge_jobs(sorted or sort_jobs(i, math.min(i + 4 * UNPACKED, last_job + 1) - 1))
  end
end
finish()
count_payloads(waiting)
if is_first or not sorted then
  wake(before)
end
if drops ~= '' then
  redis.call('HSET', senders, sender, n .. ' ' .. drops .. '|' .. math.floor(now / 1000000))
  return drops_reply(drops)
end
return 1
