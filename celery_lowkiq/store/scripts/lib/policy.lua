-- Parses ARGV policy, '<name>=<value> ...': what the queue's task asks for beyond the rules of a job; '' for nothing.
--
-- KEYS: debounce early_due due_prioritized
-- ARGV: policy
-- A queue without policies sends no keys that only policies use, and makes no functions that only they use: each would
-- cost every run of a script its share.
local options = {}
if policy ~= '' then
  for name, value in string.gmatch(policy, '([%a_]+)=(%S+)') do
    options[name] = tonumber(value) or value
  end
  if options.debounce then
    redis.call('HLEN', debounce)
  end
  if options.due_on_push then
    redis.call('HLEN', early_due)
  end
  if options.prioritized or options.priority or options.retry_priority then
    redis.call('ZCARD', due_prioritized)
  end
end

-- A job of the id waits no more: what was remembered of its calls is over.
local function clear_policy_state(id)
  if options.debounce then
    redis.call('HDEL', debounce, id)
  end
  if options.due_on_push then
    redis.call('HDEL', early_due, id)
  end
end
