-- Merges jobs into the waiting ones of a shard (rule 2), once, however often the command is repeated.
--
-- KEYS: meta senders due jobs spill order calls?
-- ARGV: shards merge sender n channel index records [id payload score when]... [position digest record]*records
--   shards: the declared count; sender, n: n grows with each push of a sender to the shard;
--   score: '' for one made here; when: '' now, '+<s>' a delay, else Unix s
--   records: of the calls that need one; position: of the call's job (from 0), digest: of its payload
-- USES: time wake bag_read bag calls
-- Returns: 1, or 0 for a repeated n; error SHARDS <stored count> when the count differs.
-- Cost: O(log n) a job; the record of an id is rewritten while it is small.
local RETENTION = 3600

local stored = redis.call('HMGET', meta, 'shards', 'score')
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end
local last = redis.call('HGET', senders, sender)
if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then
  return 0
end

local now = now_us()
local score_us = tonumber(stored[2] or 0)
local bag = {records = jobs, spill = spill, order = order}
local before = head()
local last_job = #ARGV - 3 * records
local flags = record_calls(last_job)
redis.call('HSET', senders, sender, n .. ' ' .. math.floor(now / 1000000))

local function made_score()
  score_us = math.max(now, score_us + 1)
  return seconds(score_us)
end

for i = rest, last_job, 4 do
  local id, score, when = ARGV[i], ARGV[i + 2], ARGV[i + 3]
  if score == '' then
    score = made_score()
  end
  if when == '' then
    when = seconds(now)
  elseif string.sub(when, 1, 1) == '+' then
    when = delayed(now, when)
  end
  redis.call('ZADD', due, 'NX', when, id)
  bag_add(bag, id, {{score, ARGV[i + 1], tonumber(score), flags[i] or ''}}, false)
end
redis.call('HSET', meta, 'score', string.format('%.0f', score_us))
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
return 1
