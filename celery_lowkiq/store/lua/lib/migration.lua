-- The state of a shard in a migration: a change of its queue's number of shards while it is in use.
--
-- KEYS: meta
-- meta's `gen` is the number of the last migration that the shard has joined. Its `shards`, the route, is '<n>' before that;
-- 'closed' from its fence until it opens; '<n>><m>' until it is sealed, and '<m>' then, or 'retired' when it is none of m shards.
local function state_of(gen)
  local stored = redis.call('HMGET', meta, 'shards', 'gen')
  return stored[2] == gen and stored[1] or ''
end

-- Returns true when jobs may leave and enter the shard.
local function is_open(gen)
  return string.find(state_of(gen), '>', 1, true) ~= nil
end

-- Returns true also while the shard is closed, when it receives and forgets the transfers of a migration that was aborted.
local function has_joined(gen)
  return state_of(gen) == 'closed' or is_open(gen)
end

-- The records of a transfer as one text: what the shard knows of each id, by the names of the keys that have it. A record is the number of its values, \n, and each name and value behind its length. `calls` is a list: each is a value of its
-- own.
local function pack_records(records)
  local parts = {}
  for _, record in ipairs(records) do
    local values = {}
    for name, value in pairs(record) do
      for _, each in ipairs(type(value) == 'table' and value or {value}) do
        values[#values + 1] = #name .. ' ' .. name .. #each .. ' ' .. each
      end
    end
    parts[#parts + 1] = #values .. '\n' .. table.concat(values)
  end
  return table.concat(parts)
end

local function unpack_records(text)
  local records, at = {}, 1

  local function value()
    local _, stop, length = string.find(text, '^(%d+) ', at)
    at = stop + 1 + length
    return string.sub(text, stop + 1, at - 1)
  end

  while at <= #text do
    local _, stop, count = string.find(text, '^(%d+)\n', at)
    local record, calls = {}, {}
    at = stop + 1
    for _ = 1, count do
      local name, each = value(), value()
      if name == 'calls' then
        calls[#calls + 1] = each
      else
        record[name] = each
      end
    end
    record.calls = #calls > 0 and calls or nil
    records[#records + 1] = record
  end
  return records
end

-- The shards to which transfers are on their way, as fields of `outbox`.
local function pending_transfers(outbox)
  local pending = {}
  for _, field in ipairs(redis.call('HKEYS', outbox)) do
    if not string.find(field, ':', 1, true) then
      pending[#pending + 1] = field
    end
  end
  return pending
end
