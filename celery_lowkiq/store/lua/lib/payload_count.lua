-- The number of waiting payloads, which is that of records, of members of `spill_order`, and of meta's `extra`
-- (payload_set_read.lua).
--
-- KEYS: meta
-- Writes what a script has changed of it.
local function count_payloads(set)
  if (set.extra or 0) ~= 0 then
    redis.call('HINCRBY', meta, 'extra', set.extra)
  end
end
