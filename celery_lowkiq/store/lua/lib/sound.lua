-- Needs KEYS due, jobs, claimed, processing, and, where jobs wait elsewhere than in `due`, ranked, classes, paused, held.
-- Keys that tell of the same jobs hold equal numbers of them, unless one of them was lost.
local function unsound()
  if redis.call('HLEN', processing) ~= redis.call('ZCARD', claimed) then
    return 'processing'
  end
  local elsewhere = redis.call('HLEN', jobs) - redis.call('ZCARD', due)
  if elsewhere == 0 then
    return nil
  end
  local by_rank, of_paused = redis.call('ZCARD', ranked), redis.call('ZCARD', held)
  if elsewhere ~= by_rank + of_paused then
    return 'jobs'
  elseif by_rank ~= redis.call('ZCOUNT', classes, '(0', '+inf') then
    return 'classes'
  end
  return of_paused > 0 and redis.call('ZCARD', paused) == 0 and 'paused' or nil
end
