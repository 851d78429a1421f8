-- Takes a shard over, if its lease is still what the caller saw, and puts what its former owner left in
-- processing back into the queue before anyone may claim (rule 8).
--
-- KEYS: lease meta due jobs spill order failed errors claimed processing deaths dead dead_ids dead_jobs dead_spill dead_order dead_errors
-- ARGV: owner seen_owner seen_epoch seen_counter known_epoch shards merge max_crashes poison_error
--   known_epoch: the largest that the caller knows of, so that a Redis restored from an old copy cannot repeat one
-- USES: time bag_read bag waiting morgue processing
-- FLAGS: allow-oom
-- Returns: the epoch as text (the same when repeated); error NOTOWNER <epoch>, SHARDS <stored count>.
-- Cost: O(log n) a payload in processing.
local stored = redis.call('HGET', meta, 'shards')
if stored ~= shards then
  return redis.error_reply('SHARDS ' .. (stored or '0'))
end
local current = redis.call('HMGET', lease, 'owner', 'epoch', 'counter', 'stopping')
local former, epoch, counter = current[1] or '', current[2] or '0', current[3] or '0'
if former == owner then
  return epoch
end
if former ~= seen_owner or epoch ~= seen_epoch or counter ~= seen_counter then
  return redis.error_reply('NOTOWNER ' .. epoch)
end

local now = now_us()
local now_s = seconds(now)
local next_epoch = math.max(tonumber(epoch) + 1, tonumber(known_epoch) + 1, math.floor(now / 1000))
epoch = string.format('%.0f', next_epoch)
local crashed = former ~= '' and current[4] ~= '1'

local function recover(id)
  local job = let_go(id)
  if crashed and redis.call('HINCRBY', deaths, id, 1) >= tonumber(max_crashes) then
    redis.call('HDEL', deaths, id)
    bury(id, {job.items[1]}, poison_error, now_s)
    table.remove(job.items, 1)
  end
  put_back(id, job.items, now_s, job.retry_count, job.error)
end

for _, id in ipairs(redis.call('ZRANGE', claimed, 0, -1)) do
  recover(id)
end
redis.call('HSET', lease, 'owner', owner, 'epoch', epoch, 'counter', string.format('%.0f', counter + 1), 'stopping', '0')
return epoch
