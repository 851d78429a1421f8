-- Stores samples of counters, each in a ring of its queue, one sample per time slot.
--
-- KEYS: [history]...
-- ARGV: ttl [place slot sample]...
--   place: position of the slot in the ring; ttl: s
-- USES:
-- FLAGS: allow-oom
-- Returns: the number of samples stored: a slot that already has one keeps it.
-- Cost: O(samples), which the caller bounds.
for _, history in ipairs(KEYS) do
  redis.call('HLEN', history)
end
local count = 0
for i, history in ipairs(KEYS) do
  local first = rest + (i - 1) * 3
  local place, slot = ARGV[first], ARGV[first + 1]
  local stored = redis.call('HGET', history, place)
  if not stored or string.match(stored, '^%d+') ~= slot then
    redis.call('HSET', history, place, slot .. ' ' .. ARGV[first + 2])
    redis.call('EXPIRE', history, ttl)
    count = count + 1
  end
end
return count
