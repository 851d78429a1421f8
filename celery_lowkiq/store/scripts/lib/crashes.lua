-- Counts crashes against the jobs that ran.
--
-- KEYS: crash_marks jobs
-- USES: time suspects morgue
--
-- Counts a crash at `now` (us) of the owner with this epoch ('0': of a process of a living owner) against a job; after
-- max_crashes, its payload goes to the morgue.
local function suspect(id, items, now, epoch, max_crashes, poison_error)
  local text, score = redis.call('HGET', crash_marks, id), items[#items][1]
  local mark = text and read_mark(text) or {level = 1, left = 0, last = score, entries = '', payload = ''}
  mark.left = math.max(mark.left, #items)
  if tonumber(score) > tonumber(mark.last) then
    mark.last = score
  end
  if not text or #items > 1 then
    mark.level, mark.entries, mark.payload = text and 2 or 1, '', ''
    write_mark(id, mark)
    return
  end
  local kept, count = recent(mark.payload == items[1][2] and mark.entries or '', now / 1000000)
  local died = count + 1 >= tonumber(max_crashes)
  if not died or items[1][4] ~= '' then
    mark.level, mark.entries = died and 3 or 2, kept .. ' ' .. math.floor(now / 1000000) .. ':' .. epoch
    mark.payload = items[1][2]
    write_mark(id, mark)
    return
  end
  bury(id, {table.remove(items, 1), header = items.header}, poison_error, seconds(now))
  mark.level, mark.entries, mark.payload = 2, '', ''
  if count_off(mark, 1, score) or redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', crash_marks, id)
  else
    write_mark(id, mark)
  end
end
