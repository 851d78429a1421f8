-- Reads what a diagnosis of one id needs.
--
-- ROLE: reader
-- KEYS: lease meta @waiting failed errors claimed crash_marks dead dead_errors buckets
-- ARGV: id
-- USES: time waiting.index
-- Returns: {now, owner or '', since or '', when shard and queue were paused or '',
--   entry of the id in `paused` or '', 1 when claimed, 1 when a suspect,
--   perform_in or '', retry_count, number of jobs before it, error, updated_at in the morgue or '', error there,
--   when the id's bucket is full again (us) or '', 1 when no claim takes it before a mover has sorted it}.
-- Cost: O(log n).
local function text(value)
  return value or ''
end

-- Returns the number of jobs that run before it once it is due, without regard to priority_max_wait.
local function ahead()
  local priority, perform_in, is_paused = priority_of(id), index_score(id)
  if priority == 0 or is_paused then
    return redis.call('ZRANK', due, id) or 0
  end
  local now_s = now_us() / 1000000
  local count = redis.call('ZCOUNT', due, '-inf', priority_score(0, now_s))
  for other = 1, priority - 1 do
    count = count + redis.call('ZCOUNT', by_priority, priority_score(other, 0), priority_score(other, now_s))
  end
  return count + redis.call('ZCOUNT', by_priority, priority_score(priority, 0), '(' .. priority_score(priority, perform_in))
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
  redis.call('HEXISTS', crash_marks, id),
  text(index_score(id)),
  redis.call('ZSCORE', failed, id) or '-1',
  ahead(),
  text(redis.call('HGET', errors, id)),
  text(redis.call('ZSCORE', dead, id)),
  text(redis.call('HGET', dead_errors, id)),
  text(redis.call('ZSCORE', buckets, id)),
  is_moving(id) and 1 or 0,
}
