-- The records of a transfer as one text: what the shard knows of each id, by the names of the keys that have it.
--
-- A record is the number of its values, \n, and each name and value behind its length. `calls` is a list: each is a value of its
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
