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
