-- The storage format of a shard: meta's field `format`, '<version> <fields>'; missing for version 1.
--
-- KEYS: meta
-- Fields that this version does not know are skipped (docs/adr/0020-versioned-headers.md).
-- Version 2: a push writes the payload of a new job without its length (payload_set_read.lua).
-- Version 3: payloads and call records may have signatures (docs/adr/0033-signing.md).
local FORMAT, SIGNED = '2', '3'

-- Compares text first: most shards have this format and no fields.
local function is_newer(format)
  return format and format ~= FORMAT and (tonumber(string.match(format, '^%d+')) or 0) > tonumber(SIGNED)
end

-- Returns true for version 1, in which each payload has a length.
local function has_lengths(format)
  return not format or string.sub(format, 1, 1) == '1'
end

local function refuse_format(format)
  return redis.error_reply('FORMAT ' .. string.match(format, '^%d+') .. ' ' .. SIGNED)
end

-- Gives a shard that begins this version. Others keep theirs, so that an earlier release can go on with them.
local function begin_format()
  redis.call('HSETNX', meta, 'format', FORMAT)
end

local function is_signed(format)
  return string.sub(format or '', 1, 1) == SIGNED
end

-- Raises the version of a shard before its first signature, so that releases which cannot read it stop.
local function begin_signatures(format)
  if not is_signed(format) then
    redis.call('HSET', meta, 'format', SIGNED .. string.gsub(format or '', '^%d+', ''))
  end
end
