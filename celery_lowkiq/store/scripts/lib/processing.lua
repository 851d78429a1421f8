-- Jobs in processing.
--
-- KEYS: claimed processing
-- USES: payload_set_read
-- A record is '<claim> <perform_in> <retry_count> <error length> <error><packed payloads>'. When calls of the job have
-- records, the number of the shard's last call follows the claim: '<claim>@<number>'; later calls are not the claim's.
-- A priority other than 0 follows both: '<claim>#<priority>'.
local function write_processing(id, claim, perform_in, retry_count, message, items, last_call, priority)
  redis.call('ZADD', claimed, claim, id)
  local first = last_call and claim .. '@' .. last_call or claim
  if priority > 0 then
    first = first .. '#' .. priority
  end
  local head = table.concat({first, perform_in, retry_count, #message, ''}, ' ')
  redis.call('HSET', processing, id, head .. message .. pack_items(items))
end

-- A record of a job in processing: {claim, priority, perform_in, retry_count, error, items}.
local function read_processing(record)
  local _, stop, claim, priority, perform_in, retry_count, length =
    string.find(record, '^(%d+)@?%d*#?(%d?) (%S+) (%-?%d+%.?%d*) (%d+) ')
  if not (stop and is_number(perform_in)) then
    return {claim = '0', priority = 0, perform_in = '0', retry_count = '-1', error = '', items = unpack_items(record)}
  end
  return {
    claim = claim,
    priority = tonumber(priority) or 0,
    perform_in = perform_in,
    retry_count = retry_count,
    error = string.sub(record, stop + 1, stop + length),
    items = unpack_items(string.sub(record, stop + length + 1)),
  }
end

-- Takes a job out of processing.
local function take_processing(id)
  local record = redis.call('HGET', processing, id) or ''
  redis.call('ZREM', claimed, id)
  redis.call('HDEL', processing, id)
  return read_processing(record)
end
