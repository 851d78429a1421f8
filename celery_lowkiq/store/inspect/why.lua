-- Reads all that decides about one id of a shard.
--
-- KEYS: lease meta due ranked classes held paused failed errors claimed deaths dead dead_errors buckets
-- ARGV: id
-- USES: time ranks
-- Returns: {now, owner or '', since or '', shard, queue and id paused since or '', 1 when
--   claimed, 1 when a suspect, perform_in or '', retry_count, how many wait before it, error, updated_at in the morgue or '',
--   error, when the id's bucket is full again (us) or ''}.
-- Cost: O(log n).
local function text(value)
  return value or ''
end

-- How many have their turn before it, once it is due, but for what is overdue.
local function ahead()
  local rank, score = rank_of(id), redis.call('ZSCORE', classes, id)
  if rank == 0 or tonumber(score) < 0 then
    return redis.call('ZRANK', due, id) or 0
  end
  local now_s = now_us() / 1000000
  local count = redis.call('ZCOUNT', due, '-inf', class_score(0, now_s))
  for other = 1, rank - 1 do
    count = count + redis.call('ZCOUNT', classes, class_score(other, 0), class_score(other, now_s))
  end
  return count + redis.call('ZCOUNT', classes, class_score(rank, 0), '(' .. score)
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
  text(redis.call('ZSCORE', due, id) or redis.call('ZSCORE', ranked, id) or redis.call('ZSCORE', held, id)),
  redis.call('ZSCORE', failed, id) or '-1',
  ahead(),
  text(redis.call('HGET', errors, id)),
  text(redis.call('ZSCORE', dead, id)),
  text(redis.call('HGET', dead_errors, id)),
  text(redis.call('ZSCORE', buckets, id)),
}
