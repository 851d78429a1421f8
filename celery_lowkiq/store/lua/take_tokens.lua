-- Returns unused tokens to the bucket of a queue with a rate limit, then takes tokens, one for each run.
--
-- ROLE: worker
-- KEYS: tokens
-- ARGV: holder number rate capacity wanted surplus
--   holder, number: the caller and the number of its request, which grows; a repeated number gets the same reply
--   rate, capacity: tokens a second, and maximum number of tokens; surplus: unused tokens of the last request
-- USES: time.delay
-- FLAGS: allow-oom
-- Returns: {granted, seconds until there is a token ('0': there is one)}
-- Cost: O(1); O(holders of the last hour) at the first request of a holder.
local HOUR = 3600
local mine = 'by ' .. holder
local now = now_us()
local now_s = math.floor(now / 1000000)
local per_us, most = tonumber(rate) / 1000000, tonumber(capacity)

local text, at = string.match(redis.call('HGET', tokens, 'left') or '', '^(%S+) (%d+)$')
local left = tonumber(text or '')
-- A new bucket is full, and one with foreign data (only NaN differs from itself).
if not left or left ~= left then
  left, at = most, now
end
left = math.max(0, math.min(most, left + math.max(0, now - at) * per_us))

local known = redis.call('HGET', tokens, mine)
local last, granted = string.match(known or '', '^(%d+) (%d+) %d+$')
if not known then
  local all = redis.call('HGETALL', tokens)
  for i = 1, #all, 2 do
    local asked_at = string.match(all[i], '^by ') and string.match(all[i + 1], ' (%d+)$')
    if asked_at and tonumber(asked_at) < now_s - HOUR then
      redis.call('HDEL', tokens, all[i])
    end
  end
end

if tonumber(number) > tonumber(last or 0) then
  left = math.min(most, left + tonumber(surplus))
  granted = math.min(tonumber(wanted), math.floor(left + 1e-9))
  left = math.max(0, left - granted)
  redis.call('HSET', tokens, 'left', string.format('%.17g %.0f', left, now), 'rate', rate,
    mine, string.format('%s %d %d', number, granted, now_s))
  -- The bucket is full again before it expires.
  redis.call('EXPIRE', tokens, math.ceil(math.min(LONGEST, math.max(HOUR, 2 * most / tonumber(rate)))))
elseif number ~= last then
  granted = 0
end
local wait = left + 1e-9 >= 1 and 0 or (1 - left) / tonumber(rate)
return {tonumber(granted), string.format('%.6f', wait)}
