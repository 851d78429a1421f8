-- Jobs in processing.
--
-- KEYS: claimed processing
-- USES: payload_set_read
-- A record is '<claim> <perform_in> <retry_count> <error length> <error><packed payloads>'. '<claim>@<number>': calls of the
-- job have records; those above this number arrived after the claim. '#<priority>' follows unless the priority is 0.
-- claim: a text because Lua would write a large number as 1e+14.
-- Returns the head of the record.
local function write_processing(id, claim, perform_in, retry_count, message, items, last_call, priority)
  redis.call('ZADD', claimed, claim, id)
  local first = last_call and claim .. '@' .. last_call or claim
  if priority > 0 then
    first = first .. '#' .. priority
  end
  local head = table.concat({first, perform_in, retry_count, #message, ''}, ' ') .. message
  redis.call('HSET', processing, id, pack_items(items, head))
  return head
end

-- Returns {claim, priority, perform_in, retry_count, error, items}.
local function read_processing(record)
  local _, stop, claim, priority, perform_in, retry_count, length =
    string.find(record, '^(%d+)%f[%D]@?%d*%f[%D]#?(%d?) (%S+) (%-?%d+%f[%D]%.?%d*) (%d+) ')
  if not (stop and is_number(perform_in)) then
    return {claim = '0', priority = 0, perform_in = '0', retry_count = '-1', error = '', items = unpack_items(record)}
  end
  return {
    claim = claim,
    priority = tonumber(priority) or 0,
    perform_in = perform_in,
    retry_count = retry_count,
    error = string.sub(record, stop + 1, stop + length),
    items = unpack_items(record, stop + length + 1),
  }
end

-- Removes a job from processing and returns its record; `record`: if the caller has read it.
local function take_processing(id, record)
  record = record or redis.call('HGET', processing, id) or ''
  redis.call('ZREM', claimed, id)
  redis.call('HDEL', processing, id)
  return read_processing(record)
end
