-- The storage format of a shard: meta's field `format`. It is FORMAT, or SIGNED once a payload or call record has had a
-- signature (docs/adr/0034-signing.md). A shard of another format, or of none, is refused before the first write.
--
-- KEYS: meta
local FORMAT, SIGNED = '4', '4 signed'

local function is_foreign(format)
  return format ~= FORMAT and format ~= SIGNED
end

local function refuse_format(format)
  return redis.error_reply('FORMAT ' .. FORMAT .. ' ' .. string.match(format or '', '^[%w ]*'))
end

local function begin_format()
  redis.call('HSETNX', meta, 'format', FORMAT)
end

local function begin_signatures(format)
  if format == FORMAT then
    redis.call('HSET', meta, 'format', SIGNED)
  end
end
