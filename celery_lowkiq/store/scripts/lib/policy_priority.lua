-- Policies priority and retry_priority: where jobs with a priority wait. `prioritized`: calls of this push have one.
--
-- KEYS: due_prioritized
-- USES: policies
if options.prioritized or options.priority or options.retry_priority then
  redis.call('ZCARD', due_prioritized)
end
if options.prioritized then
  function hooks.split_priority(when)
    return tonumber(string.sub(when, 1, 1)), string.sub(when, 3)
  end
end
