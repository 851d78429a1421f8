-- Stores a sample of a queue's counters in a ring, one sample per time slot.
--
-- KEYS: history
-- ARGV: place slot at processed failed ttl
--   place: position of the slot in the ring; ttl: s
-- USES:
-- FLAGS: allow-oom
-- Returns: 1, or 0 when the slot already has a sample.
-- Cost: O(1).
local stored = redis.call('HGET', history, place)
if stored and string.match(stored, '^%d+') == slot then
  return 0
end
redis.call('HSET', history, place, table.concat({slot, at, processed, failed}, ' '))
redis.call('EXPIRE', history, ttl)
return 1
