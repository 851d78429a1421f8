-- Merges jobs into the waiting ones of a shard (rule 2), once, however often the command is repeated.
--
-- KEYS: meta? senders? due? ranked? classes? paused? held? jobs spill order calls? failed errors processing tries?
-- POLICY KEYS: first? early? peaks?
-- ARGV: shards merge policy sender n channel index records [id payload score when]... [position digest record]*records
--   shards: the declared count; sender, n: n grows with each push of a sender to the shard;
--   score: '' for one made here, '~<s>' for a time that a sender's clock showed, unless Redis's has not come so far; when: '' now, '+<s>' a delay, else Unix s; with policy ranked=1, '<priority> ' before that
--   records: of the calls that need one; position: of the call's job (from 0), digest: of its payload
-- USES: time ranks wake bag_read bag held calls policy keep stale arriving
-- Returns: 1, or 0 for a repeated n, or, also when repeated, where a policy dropped calls that have records, {text of
--   their positions, id, number of the shard's last call, processing record or '', ...}: of jobs that gave way to others;
--   error SHARDS <stored count> when the count differs, FULL <length> <allowed> when there is no place, and nothing was
--   stored.
-- Cost: O(log n) a job; the record of an id is rewritten while it is small.
local RETENTION = 3600

local stored = redis.call('HMGET', meta, 'shards', 'score')
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end

-- '<n> <s>', or, where calls were dropped, '<n> <text>|<s>'.
local last = redis.call('HGET', senders, sender)
if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then
  local text = policy ~= '' and string.match(last, '^' .. n .. ' (.*)|%d+$')
  return text and told(text) or 0
end

local now = now_us()
local now_s = seconds(now)
local score_us = tonumber(stored[2] or 0)
local bag = {records = jobs, spill = spill, order = order}
local before = first_due()
local last_job = #ARGV - 3 * records
local refusal = asked.length and full(last_job, now_s)
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

-- Writes when jobs are due that do not wait yet: {perform_in, id, ...}.
local function add_times(times)
  if not any_paused then
    redis.call('ZADD', due, 'NX', unpack(times))
    return
  end
  local parts = {[due] = {}, [held] = {}}
  for i = 1, #times, 2 do
    local part = parts[index_of(times[i + 1])]
    part[#part + 1], part[#part + 2] = times[i], times[i + 1]
  end
  for index, part in pairs(parts) do
    if #part > 0 then
      redis.call('ZADD', index, 'NX', unpack(part))
    end
  end
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
  add_times(times)
  if #new > 0 then
    redis.call('HSET', jobs, unpack(new))
  end
  for _, id in ipairs(ids) do
    bag_add(bag, id, more[id], false)
  end
end

local gone = ''
if not (any_ranked or asked.ranked or asked.keep or asked.stale or asked.debounce or asked.now or asked.length) then
  -- `unpack` takes so many values at once.
  for i = rest, last_job, 4 * 1000 do
    merge_jobs(i, math.min(i + 4 * 1000, last_job + 1) - 1)
  end
else
  -- The job in ARGV from `i` on, of a task with policies. A stale payload that somebody hears of is dropped by its claim,
  -- unless it would take the place of a job that is to run.
  local function merge_job(i)
    local id, payload, score, flag = ARGV[i], ARGV[i + 1], score_of(ARGV[i + 2]), flags[i] or ''
    local rank, when = 0, ARGV[i + 3]
    if asked.ranked then
      rank, when = tonumber(string.sub(when, 1, 1)), string.sub(when, 3)
    end
    local waits = redis.call('HEXISTS', jobs, id) == 1
    local dropped = (flag == '' or asked.length and not waits) and is_stale(id, score)
    if dropped or not waits and not has_place() then
      return forgo(i, members[i])
    end
    local items = {{score, payload, tonumber(score), flag}}
    bag_add(bag, id, items, false)
    if asked.keep and not any_kept(bag, id, items) then
      return
    end
    merged = merged + (waits and 1 or 0)
    rank = waits and math.min(rank, rank_of(id)) or rank
    local due_at = later(id, waits, time_of(when), when ~= '', now)
    if not due_at and any_ranked and rank ~= rank_of(id) then
      due_at = redis.call('ZSCORE', index_of(id), id)
    end
    if due_at then
      lay(id, due_at, rank)
    end
  end
  for i = rest, last_job, 4 do
    merge_job(i)
  end
  gone = given_way()
end
redis.call('HSET', meta, 'score', string.format('%.0f', score_us))
if merged > 0 then
  redis.call('HINCRBY', meta, 'merged', merged)
end
wake(before)

-- Each new sender sweeps away a few that were not heard of for an hour.
if not last then
  local swept = redis.call('HSCAN', senders, redis.call('HGET', meta, 'sweep') or '0', 'COUNT', 16)
  redis.call('HSET', meta, 'sweep', swept[1])
  for i = 1, #swept[2], 2 do
    if tonumber(string.match(swept[2][i + 1], '%d+$') or 0) < now / 1000000 - RETENTION then
      redis.call('HDEL', senders, swept[2][i])
    end
  end
end
if gone ~= '' then
  redis.call('HSET', senders, sender, n .. ' ' .. gone .. '|' .. math.floor(now / 1000000))
  return told(gone)
end
return 1
