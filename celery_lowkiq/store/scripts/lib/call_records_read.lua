-- Reads the first records of claimed jobs, for the reply of a claim.
--
-- KEYS: calls
-- USES: payload_set_read
-- Returns {id, '1' when it has more, {member, ...}, ...}. Python sorts the members by payload, and reads the others page by
-- page.
local RECORDS = 100
local RECORDS_OF_CLAIM = 1000

local function first_calls(ids)
  local reply, left = {}, RECORDS_OF_CLAIM
  for _, id in ipairs(ids) do
    local most = math.min(RECORDS, left)
    -- The claim has moved its jobs, so an error must not end it. Python meets the error when it reads the other records.
    local found = redis.pcall('ZRANGEBYLEX', calls, lex_min(id), lex_max(id), 'LIMIT', 0, most + 1)
    local more = found.err or #found > most
    found[most + 1], found.err = nil, nil
    left = left - #found
    for _, value in ipairs({id, more and '1' or '0', found}) do
      reply[#reply + 1] = value
    end
  end
  return reply
end
