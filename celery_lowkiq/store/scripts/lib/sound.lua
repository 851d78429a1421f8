-- Needs KEYS meta, due, jobs, spill, order, claimed, processing, ranked, classes, paused, held.
-- Keys that tell of the same jobs hold equal numbers of them, unless one of them was lost. `apart`: by how many entries
-- spill and order differ, as a repair has left them.
local function unsound(apart)
  if redis.call('HLEN', spill) - redis.call('ZCARD', order) ~= tonumber(apart or 0) then
    return 'order'
  end
  if redis.call('HLEN', processing) ~= redis.call('ZCARD', claimed) then
    return 'processing'
  end
  local elsewhere = redis.call('HLEN', jobs) - redis.call('ZCARD', due)
  local by_rank, of_paused = redis.call('ZCARD', ranked), redis.call('ZCARD', held)
  if elsewhere == 0 and by_rank == 0 and of_paused == 0 then
    return nil
  elseif elsewhere ~= by_rank + of_paused then
    return 'jobs'
  elseif by_rank ~= redis.call('ZCOUNT', classes, '(0', '+inf') then
    return 'classes'
  end
  return of_paused > 0 and redis.call('ZCARD', paused) == 0 and 'paused' or nil
end
