-- The storage format of a shard: meta's field `format`, '<version> <fields>'; missing for version 1.
--
-- Fields that this version does not know are skipped (docs/adr/0020-versioned-headers.md).
local FORMAT = 1

local function is_newer(format)
  return format and (tonumber(string.match(format, '^%d+')) or 0) > FORMAT
end

local function refuse_format(format)
  return redis.error_reply('FORMAT ' .. string.match(format, '^%d+'))
end
