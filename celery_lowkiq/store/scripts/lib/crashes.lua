-- Counts crashes against the jobs that ran.
--
-- KEYS: crash_marks jobs
-- USES: time suspects morgue
--
-- Counts a crash at `now` (us) of the owner with this epoch ('0': of a process of a living owner) against a job; after
-- max_crashes, its payload goes to the morgue.
local function suspect(id, items, now, epoch, max_crashes, poison_error)
  local mark = redis.call('HGET', crash_marks, id)
  if not mark then
    write_mark(id, 1, #items, '', '')
    return
  end
  local _, entries, payload, left = read_mark(mark)
  if #items > 1 then
    write_mark(id, 2, math.max(left, #items), '', '')
    return
  end
  local kept, count = recent(payload == items[1][2] and entries or '', now / 1000000)
  local died = count + 1 >= tonumber(max_crashes)
  if not died or items[1][4] ~= '' then
    local death = ' ' .. math.floor(now / 1000000) .. ':' .. epoch
    write_mark(id, died and 3 or 2, left, kept .. death, items[1][2])
    return
  end
  bury(id, {table.remove(items, 1), header = items.header}, poison_error, seconds(now))
  if left > 1 and redis.call('HEXISTS', jobs, id) == 1 then
    write_mark(id, 2, left - 1, '', '')
  else
    redis.call('HDEL', crash_marks, id)
  end
end
