-- Pauses a shard, or ends its own pause. Claims take nothing of a paused shard; running jobs finish, new calls wait.
--
-- ROLE: operator
-- KEYS: meta @waiting
-- ARGV: wanted channel index
--   wanted: '1' pauses, '0' resumes
-- USES: time waiting.index waiting.wake
-- FLAGS: allow-oom
-- Returns: 1, or 0 when this changed nothing.
-- Cost: O(log n). Repeated: no effect; the shard is paused since the first time.
if wanted == '1' then
  return redis.call('HSETNX', meta, 'paused', seconds(now_us()))
end
local ended = redis.call('HDEL', meta, 'paused')
if ended == 1 then
  wake(nil)
end
return ended
