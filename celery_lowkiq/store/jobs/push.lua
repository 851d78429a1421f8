-- Merges jobs into the waiting ones of a shard (rule 2), once, however often the command is repeated.
--
-- KEYS: meta? senders? @waiting? jobs spill spill_order calls? failed errors processing tries?
-- POLICY KEYS: debounce? early_due? done_scores?
-- ARGV: shards merge policy sender n channel index records [id payload score when]... [position digest record]*records
--   shards: the declared count; sender, n: n grows with each push of a sender to the shard;
--   score: '' for one made here, '~<s>' for a time that a sender's clock showed, unless Redis's has not come so far; when: '' now, '+<s>' a delay, else Unix s; with policy prioritized=1, '<priority> ' before that
--   records: of the calls that need one; position: of the call's job (from 0), digest: of its payload
-- USES: format time waiting_index wake payload_set_read payload_set call_records policy keep_highest drop_stale push_policies
-- Returns: 1, or 0 for a repeated n, or, also when repeated, where a policy dropped calls that have records, {text of
--   their positions, id, number of the shard's last call, processing record or '', ...}: of jobs that gave way to others;
--   error SHARDS <stored count> when the count differs, FULL <length> <allowed> when there is no place, and nothing was
--   stored.
-- Cost: O(log n) a job; the record of an id is rewritten while it is small.
local RETENTION = 3600

local stored = redis.call('HMGET', meta, 'shards', 'score', 'format')
if is_newer(stored[3]) then
  return refuse_format(stored[3])
end
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end

-- '<n> <s>', or, where calls were dropped, '<n> <text>|<s>'.
local last = redis.call('HGET', senders, sender)
if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then
  local text = policy ~= '' and string.match(last, '^' .. n .. ' (.*)|%d+$')
  return text and drops_reply(text) or 0
end

local now = now_us()
local now_s = seconds(now)
local score_us = tonumber(stored[2] or 0)
local set = {records = jobs, spill = spill, spill_order = spill_order}
local before = first_due()
local last_job = #ARGV - 3 * records
local refusal = options.max_length and length_refusal(last_job, now_s)
if refusal then
  return refusal
end
local flags, members = record_calls(last_job)
local merged = 0
redis.call('HSET', senders, sender, n .. ' ' .. math.floor(now / 1000000))

local function made_score()
  score_us = math.max(now, score_us + 1)
  return seconds(score_us)
end

local function score_of(given)
  if given == '' then
    return made_score()
  end
  local sent = string.match(given, '^~(.+)')
  return sent and tonumber(sent) * 1000000 > now and made_score() or sent or given
end

local function time_of(when)
  if when == '' then
    return now_s
  end
  return string.sub(when, 1, 1) == '+' and delayed(now, when) or when
end

-- Of jobs from `from` to `to` in ARGV: what waits of their ids.
local function waiting_records(from, to)
  local ids = {}
  for i = from, to, 4 do
    ids[#ids + 1] = ARGV[i]
  end
  return redis.call('HMGET', jobs, unpack(ids))
end

-- Ids of which nothing waits, as nearly all are, are written together: their first payload needs no merging. The others
-- are merged by their ids.
local function merge_jobs(from, to)
  local known, times, new, first, more, ids = waiting_records(from, to), {}, {}, {}, {}, {}
  for i = from, to, 4 do
    local id, payload, score = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2])
    times[#times + 1], times[#times + 2] = time_of(ARGV[i + 3]), id
    local flag = flags[i] or ''
    if not known[(i - from) / 4 + 1] and not first[id] then
      first[id] = true
      new[#new + 1], new[#new + 2] = id, score .. ' ' .. #payload .. flag .. ' ' .. payload
    else
      merged = merged + 1
      if not more[id] then
        more[id], ids[#ids + 1] = {}, id
      end
      table.insert(more[id], {score, payload, tonumber(score), flag})
    end
  end
  index_add(times)
  if #new > 0 then
    redis.call('HSET', jobs, unpack(new))
  end
  for _, id in ipairs(ids) do
    set_add(set, id, more[id], false)
  end
end

local drops = ''
if not (any_prioritized or options.prioritized or options.keep or options.drop_stale or options.debounce or options.due_on_push or options.max_length) then
  -- `unpack` takes so many values at once.
  for i = rest, last_job, 4 * 1000 do
    merge_jobs(i, math.min(i + 4 * 1000, last_job + 1) - 1)
  end
else
  -- The job in ARGV from `i` on, of a task with policies. A stale payload that somebody hears of is dropped by its claim,
  -- unless it would take the place of a job that is to run.
  local function merge_job(i)
    local id, payload, score, flag = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2]), flags[i] or ''
    local priority, when = 0, ARGV[i + 3]
    if options.prioritized then
      priority, when = tonumber(string.sub(when, 1, 1)), string.sub(when, 3)
    end
    local waits = redis.call('HEXISTS', jobs, id) == 1
    local dropped = (flag == '' or options.max_length and not waits) and is_stale(id, score)
    if dropped or not waits and not make_room() then
      return drop_call(i, members[i])
    end
    local items = {{score, payload, tonumber(score), flag}}
    set_add(set, id, items, false)
    if options.keep and not any_kept(set, id, items) then
      return
    end
    merged = merged + (waits and 1 or 0)
    priority = waits and math.min(priority, priority_of(id)) or priority
    local due_at = due_after(id, waits, time_of(when), when ~= '', now)
    if not due_at and any_prioritized and priority ~= priority_of(id) then
      due_at = index_score(id)
    end
    if due_at then
      index_put(id, due_at, priority)
    end
  end
  for i = rest, last_job, 4 do
    merge_job(i)
  end
  drops = drops_text()
end
redis.call('HSET', meta, 'score', string.format('%.0f', score_us))
if merged > 0 then
  redis.call('HINCRBY', meta, 'merged', merged)
end
wake(before)

-- Each new sender sweeps away a few that were not heard of for an hour.
if not last then
  local swept = redis.call('HSCAN', senders, redis.call('HGET', meta, 'senders_cursor') or '0', 'COUNT', 16)
  redis.call('HSET', meta, 'senders_cursor', swept[1])
  for i = 1, #swept[2], 2 do
    if tonumber(string.match(swept[2][i + 1], '%d+$') or 0) < now / 1000000 - RETENTION then
      redis.call('HDEL', senders, swept[2][i])
    end
  end
end
if drops ~= '' then
  redis.call('HSET', senders, sender, n .. ' ' .. drops .. '|' .. math.floor(now / 1000000))
  return drops_reply(drops)
end
return 1
