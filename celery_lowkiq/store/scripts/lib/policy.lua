-- Needs ARGV policy: '<name>=<value> ...', what the queue's task asks for beyond the rules of a job; '' for nothing.
-- Without them, keys that only policies use are left alone, and functions that only they use are not even made: each
-- would cost every run of a script its share.
local asked = {}
if policy ~= '' then
  for name, value in string.gmatch(policy, '([%a_]+)=(%S+)') do
    asked[name] = tonumber(value) or value
  end
  if asked.debounce then
    redis.call('HLEN', first)
  end
  if asked.now then
    redis.call('HLEN', early)
  end
  if asked.ranked or asked.rank or asked.retry_rank then
    redis.call('ZCARD', ranked)
  end
end

-- A job of the id waits no more: what was remembered of its calls is over.
local function forget_policy(id)
  if asked.debounce then
    redis.call('HDEL', first, id)
  end
  if asked.now then
    redis.call('HDEL', early, id)
  end
end
