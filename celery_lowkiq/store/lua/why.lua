-- Reads all that decides about one id of a shard.
--
-- KEYS: lease meta due held paused failed errors claimed deaths dead dead_errors
-- ARGV: id
-- USES: time
-- Returns: {now, owner or '', since or '', shard, queue and id paused since or '', 1 when
--   claimed, 1 when a suspect, perform_in or '', retry_count, how many wait before it, error, updated_at in the morgue or '',
--   error}.
-- Cost: O(log n).
local function text(value)
  return value or ''
end

local current = redis.call('HMGET', lease, 'owner', 'since')
local pauses = redis.call('HMGET', meta, 'paused', 'queue_paused')
return {
  seconds(now_us()),
  text(current[1]),
  text(current[2]),
  text(pauses[1]),
  text(pauses[2]),
  text(redis.call('ZSCORE', paused, id)),
  redis.call('ZSCORE', claimed, id) and 1 or 0,
  redis.call('HEXISTS', deaths, id),
  text(redis.call('ZSCORE', due, id) or redis.call('ZSCORE', held, id)),
  redis.call('ZSCORE', failed, id) or '-1',
  redis.call('ZRANK', due, id) or 0,
  text(redis.call('HGET', errors, id)),
  text(redis.call('ZSCORE', dead, id)),
  text(redis.call('HGET', dead_errors, id)),
}
