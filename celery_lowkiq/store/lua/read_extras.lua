-- Reads the extras of a part of the records of waiting jobs (lib/payloads.lua), to count their payloads anew.
--
-- ROLE: operator
-- KEYS: meta jobs
-- ARGV: cursor limit
--   limit: approximate number of records to read
-- USES: payloads
-- Returns: {cursor, extra of all as meta has it, [id, extra]... but those of 0}.
-- Cost: O(limit). Read-only.
local found = redis.call('HSCAN', jobs, cursor, 'COUNT', limit)
local reply = {found[1], redis.call('HGET', meta, 'extra') or '0'}
for i = 1, #found[2], 2 do
  local record = found[2][i + 1]
  local extra = record == SPILLED and -1 or #unpack_items(record) - 1
  if extra ~= 0 then
    reply[#reply + 1], reply[#reply + 2] = found[2][i], extra
  end
end
return reply
