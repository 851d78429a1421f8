-- Stores samples of counters, each in a ring of its queue, one sample per time slot.
--
-- ROLE: worker
-- KEYS: [history]...
-- ARGV: [place slot ttl sample lag]...
--   place: position of the slot in the ring; ttl: s; lag: s, '' for a sample without one
-- USES:
-- FLAGS: allow-oom
-- Returns: the number of samples stored: a slot that already has one keeps it, with the larger lag.
-- Cost: O(samples), which the caller bounds.
for _, history in ipairs(KEYS) do
  redis.call('HLEN', history)
end
local count = 0
for i, history in ipairs(KEYS) do
  local place, slot, ttl, sample, lag = unpack(ARGV, rest + (i - 1) * 5, rest + i * 5 - 1)
  local stored = redis.call('HGET', history, place)
  local counters, stored_lag = string.match(stored or '', '^(%d+ [%d%.]+ %d+ %d+)%f[%D] ?([%d%.]*)$')
  if not stored or string.match(stored, '^%d+') ~= slot then
    redis.call('HSET', history, place, slot .. ' ' .. sample .. (lag ~= '' and ' ' .. lag or ''))
    redis.call('EXPIRE', history, ttl)
    count = count + 1
  elseif counters and lag ~= '' and tonumber(lag) > (tonumber(stored_lag) or 0) then
    redis.call('HSET', history, place, counters .. ' ' .. lag)
  end
end
return count
