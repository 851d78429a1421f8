-- Needs KEYS claimed, processing. A job in processing is one record:
-- '<claim> <perform_in> <retry_count> <error length> <error><packed payloads>'. When its calls have records, the
-- number of the shard's last call stands behind the claim: '<claim>@<number>'. Later calls are not the claim's. Another
-- priority than 0 stands behind both: '<claim>#<priority>'.
local function hold(id, claim, perform_in, retry_count, message, items, last_call, rank)
  redis.call('ZADD', claimed, claim, id)
  local first = last_call and claim .. '@' .. last_call or claim
  if rank > 0 then
    first = first .. '#' .. rank
  end
  local head = table.concat({first, perform_in, retry_count, #message, ''}, ' ')
  redis.call('HSET', processing, id, head .. message .. pack_items(items))
end

-- A record of a job in processing: {claim, rank, perform_in, retry_count, error, items}.
local function read_held(record)
  local _, stop, claim, rank, perform_in, retry_count, length =
    string.find(record, '^(%d+)@?%d*#?(%d?) (%S+) (%-?%d+%.?%d*) (%d+) ')
  if not (stop and is_number(perform_in)) then
    return {claim = '0', rank = 0, perform_in = '0', retry_count = '-1', error = '', items = unpack_items(record)}
  end
  return {
    claim = claim,
    rank = tonumber(rank) or 0,
    perform_in = perform_in,
    retry_count = retry_count,
    error = string.sub(record, stop + 1, stop + length),
    items = unpack_items(string.sub(record, stop + length + 1)),
  }
end

-- Takes a job out of processing.
local function let_go(id)
  local record = redis.call('HGET', processing, id) or ''
  redis.call('ZREM', claimed, id)
  redis.call('HDEL', processing, id)
  return read_held(record)
end
