-- Needs KEYS jobs, processing, dead, tries, deaths. What is known of an id from earlier runs goes with the last that is
-- left of it: deaths count for what may run again, the log of tries is shown of a dead job, too.
local function forget_past(id)
  if redis.call('HEXISTS', jobs, id) == 1 or redis.call('HEXISTS', processing, id) == 1 then
    return
  end
  redis.call('HDEL', deaths, id)
  if not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
  end
end
