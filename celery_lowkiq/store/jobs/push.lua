-- Merges jobs into the waiting jobs of a shard (rule 2). Repeated: no effect.
--
-- KEYS: meta? senders? @waiting? jobs spill spill_order calls? failed errors processing tries?
-- POLICY KEYS: debounce? early_due? done_scores?
-- ARGV: shards merge policy sender n channel index records [id payload score when]... [position digest record]*records
--   shards: the declared count; n: larger than that of each former push of the sender to the shard
--   score: '' generates one; '~<s>': the time of a sender's clock, generated when Redis's clock is behind it
--   when: '' for now, '+<s>' for a delay, else Unix s; with policy prioritized=1, '<priority> ' before that
--   records: number of call records; position: index of the call's job, from 0; digest: of its payload
-- USES: format time delete_old_fields waiting_index wake payload_set call_records waiting policies policy_per_run policy_priority policy_keep policy_drop_stale policy_max_length policy_debounce policy_due_on_push dropped_calls
-- Returns: 1; 0 for a repeated n; or, when policies dropped calls that have records, the positions of dropped calls in one
--   text, then orphans (see lib/orphans.lua), the same when repeated; error SHARDS <stored count> when the count differs,
--   or FULL <length> <allowed>.
-- Cost: O(log n) a job, and the size of the packed record of its id.
local RETENTION = 3600
-- Jobs of one command: `unpack` takes a limited number of values.
local UNPACKED = 1000

local stored = redis.call('HMGET', meta, 'shards', 'score', 'format')
if is_newer(stored[3]) then
  return refuse_format(stored[3])
end
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end

-- '<n> <s>', or, when calls were dropped, '<n> <text of the reply>|<s>'.
local last = redis.call('HGET', senders, sender)
if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then
  local text = hooks.drops_call and string.match(last, '^' .. n .. ' (.*)|%d+$')
  return text and drops_reply(text) or 0
end

local now = now_us()
local now_s = seconds(now)
local score_us = tonumber(stored[2] or 0)
local before = first_due()
local last_job = #ARGV - 3 * records
local refusal = hooks.refusal and hooks.refusal(last_job, now_s)
if refusal then
  return refusal
end
local flags, members = record_calls(last_job)
local merged = 0
redis.call('HSET', senders, sender, n .. ' ' .. math.floor(now / 1000000))

local function score_of(given)
  local sent = given ~= '' and string.match(given, '^~(.+)')
  if given == '' or sent and tonumber(sent) * 1000000 > now then
    score_us = math.max(now, score_us + 1)
    return seconds(score_us)
  end
  return sent or given
end

local function time_of(when)
  if when == '' then
    return now_s
  end
  return string.sub(when, 1, 1) == '+' and delayed(now, when) or when
end

-- The payload of the id that has failed, when a call with this score may get in front of it.
local function passable(id, given)
  return (given ~= '' or merge == 'max') and failed_payload(id) or nil
end

-- Merges the jobs in ARGV from `from` to `to`. First payloads of ids without a waiting job need no merging: they are written
-- together.
local function merge_jobs(from, to)
  local records, times, new, first, more, ids = {}, {}, {}, {}, {}, {}
  for i = from, to, 4 do
    records[#records + 1] = ARGV[i]
  end
  records = redis.call('HMGET', jobs, unpack(records))
  for i = from, to, 4 do
    local id, payload, score = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2])
    times[#times + 1], times[#times + 2] = time_of(ARGV[i + 3]), id
    local flag = flags[i] or ''
    if not records[(i - from) / 4 + 1] and not first[id] then
      first[id] = true
      new[#new + 1], new[#new + 2] = id, score .. ' ' .. #payload .. flag .. ' ' .. payload
    else
      merged = merged + 1
      if not more[id] then
        more[id], ids[#ids + 1] = {given = ''}, id
      end
      more[id].given = more[id].given .. ARGV[i + 2]
      table.insert(more[id], {score, payload, tonumber(score), flag})
    end
  end
  index_add(times)
  if #new > 0 then
    redis.call('HSET', jobs, unpack(new))
  end
  for _, id in ipairs(ids) do
    local payload = passable(id, more[id].given)
    for _, item in ipairs(payload and more[id] or {}) do
      set_add(waiting, id, {item}, false)
      forget_if_passed(id, payload)
    end
    if not payload then
      set_add(waiting, id, more[id], false)
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
    local waits = redis.call('HEXISTS', jobs, id) == 1
    if hooks.drops_call and hooks.drops_call(id, score, flag, waits) then
      return drop_call(i, members[i])
    end
    local items = {{score, payload, tonumber(score), flag}}
    local failed_one = waits and passable(id, ARGV[i + 2])
    set_add(waiting, id, items, false)
    if hooks.trim and not hooks.trim(id, items) then
      return
    end
    merged = merged + (waits and 1 or 0)
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
  for i = rest, last_job, 4 * UNPACKED do
    merge_jobs(i, math.min(i + 4 * UNPACKED, last_job + 1) - 1)
  end
end
redis.call('HSET', meta, 'score', string.format('%.0f', score_us))
if merged > 0 then
  redis.call('HINCRBY', meta, 'merged', merged)
end
wake(before)

-- Each new sender deletes some senders without a push for an hour.
if not last then
  delete_old_fields(senders, 'senders_cursor', now / 1000000 - RETENTION)
end
if drops ~= '' then
  redis.call('HSET', senders, sender, n .. ' ' .. drops .. '|' .. math.floor(now / 1000000))
  return drops_reply(drops)
end
return 1
