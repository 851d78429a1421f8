-- Deletes crash mark and log of tries of an id without waiting or claimed job.
--
-- KEYS: jobs processing dead tries crash_marks
-- The log of tries stays while the id is in the morgue.
local function forget_history(id)
  if redis.call('HEXISTS', jobs, id) == 1 or redis.call('HEXISTS', processing, id) == 1 then
    return
  end
  redis.call('HDEL', crash_marks, id)
  if not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
  end
end
