-- Changes of a tracker's calls.
--
-- KEYS: tracker tracked places messages
-- USES: time
-- Scripts that call finish_update have ARGV channel.
-- A call's entry in `tracked` is `<shard> <epoch> <claim> <ended> <updated> <current> <total> <description>`: the first four are
-- of its last run. Its score in `places` has its state and its arrival number.
local SPAN = 1099511627776
local STATES = {'enqueued', 'working', 'finished', 'failed', 'error'}
local MESSAGES = 20
-- Minimum time to live of a tracker with pending calls, in s.
local PENDING = 30 * 86400

local ordinals = {}
for i, state in ipairs(STATES) do
  ordinals[state] = i - 1
end
local now = now_us()
local now_s = seconds(now)
local changed = {}

-- Redis 6.2 at its maxmemory refuses a script whose first write may need memory.
local function may_write()
  redis.call('EXPIRE', tracker, PENDING)
end

-- State and arrival number; nil for an unknown call.
local function where(call)
  local score = tonumber(redis.call('ZSCORE', places, call) or '')
  if score then
    return STATES[math.floor(score / SPAN) + 1], score % SPAN
  end
end

local function place(call, arrival, state, former)
  redis.call('ZADD', places, string.format('%.0f', ordinals[state] * SPAN + arrival), call)
  changed[state] = (changed[state] or 0) + 1
  if former then
    changed[former] = (changed[former] or 0) - 1
  end
end

local function is_pending(state)
  return state == 'enqueued' or state == 'working'
end

-- The last run, and the description of the call. Foreign data counts as no run.
local function known(call)
  local record = redis.call('HGET', tracked, call) or ''
  local shard, epoch, claim, ended, start = string.match(record, '^(%d+) (%d+) (%d+) ([01]) %S+ %S+ %S+ ()')
  local run = {
    shard = tonumber(shard or 0), epoch = tonumber(epoch or 0), claim = tonumber(claim or 0), ended = tonumber(ended or 0),
  }
  return run, string.sub(record, start or 1)
end

local function write_call(call, run, current, total, what)
  local numbers = string.format('%d %.0f %.0f %d ', run.shard, run.epoch, run.claim, run.ended)
  redis.call('HSET', tracked, call, numbers .. now_s .. ' ' .. current .. ' ' .. total .. ' ' .. what)
end

-- Adds a message of a call, and removes the oldest above MESSAGES.
local function add_message(call, state, text)
  if text == '' then
    return
  end
  local count, said = string.match(redis.call('HGET', messages, call) or '', '^(%d+) (.*)$')
  count, said = tonumber(count or 0), said or ''
  if count >= MESSAGES then
    local _, stop, length = string.find(said, '^%S+ %a+ (%d+) ')
    count, said = count - 1, string.sub(said, (stop or #said) + (length or 0) + 1)
  end
  redis.call('HSET', messages, call, count + 1 .. ' ' .. said .. now_s .. ' ' .. state .. ' ' .. #text .. ' ' .. text)
end

-- Writes counts and time to live, and announces that no call is pending any more.
local function finish_update()
  local any = false
  for state, by in pairs(changed) do
    any = true
    redis.call('HINCRBY', tracker, state, by)
  end
  local kept = redis.call('HMGET', tracker, 'ttl', 'enqueued', 'working', 'latest')
  local pending = (kept[2] or 0) + (kept[3] or 0) > 0
  local ttl = tonumber(kept[1] or PENDING)
  if pending then
    ttl = math.max(ttl, PENDING) + math.max(0, math.ceil((kept[4] or 0) - now / 1000000))
  end
  for _, key in ipairs({tracker, tracked, places, messages}) do
    redis.call('EXPIRE', key, ttl)
  end
  if any and not pending then
    redis.call('PUBLISH', channel, 'done')
  end
end
