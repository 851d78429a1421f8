-- Fields of `meta` and of other hashes.

-- PART: format
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

-- PART: begin_format
-- KEYS: meta
-- USES: meta.format
local function begin_format()
  redis.call('HSETNX', meta, 'format', FORMAT)
end

local function begin_signatures(format)
  if format == FORMAT then
    redis.call('HSET', meta, 'format', SIGNED)
  end
end

-- PART: queue_pause
-- Applies the last change of the queue's pause to a shard.
--
-- KEYS: meta
-- ARGV: pause since
-- pause: number of the change; changes may arrive in any order, and the largest number is valid. since: '' when the queue is
-- not paused. Returns true when a pause has begun or ended.
local function apply_queue_pause()
  if (tonumber(redis.call('HGET', meta, 'queue_pause')) or 0) >= tonumber(pause) then
    return false
  end
  redis.call('HSET', meta, 'queue_pause', pause)
  if since == '' then
    return redis.call('HDEL', meta, 'queue_paused') == 1
  end
  return redis.call('HSET', meta, 'queue_paused', since) == 1
end

-- PART: payload_count
-- The number of waiting payloads, which is that of records, of members of `spill_order`, and of meta's `extra`
-- (payloads.lua).
--
-- KEYS: meta
-- Writes what a script has changed of it.
local function count_payloads(set)
  if (set.extra or 0) ~= 0 then
    redis.call('HINCRBY', meta, 'extra', set.extra)
  end
end

-- PART: old_fields
-- Deletes fields of a hash whose values end with a time (s) before `oldest`, in one step of a scan.
--
-- KEYS: meta
-- cursor: field of meta with the position of the scan.
local function delete_old_fields(key, cursor, oldest)
  local scan = redis.call('HSCAN', key, redis.call('HGET', meta, cursor) or '0', 'COUNT', 16)
  redis.call('HSET', meta, cursor, scan[1])
  for i = 1, #scan[2], 2 do
    if (tonumber(string.match(scan[2][i + 1], '%f[%d]%d+$')) or 0) < oldest then
      redis.call('HDEL', key, scan[2][i])
    end
  end
end
