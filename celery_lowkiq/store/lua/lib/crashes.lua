-- Counts crashes against the jobs that ran.
--
-- KEYS: crash_marks jobs
-- USES: time suspects morgue
--
-- Counts a crash at `now` (us) of the owner with this epoch ('0': of a process of a living owner) against a job; after
-- max_crashes, its payload goes to the morgue.
local function suspect(id, items, now, epoch, max_crashes, poison_error)
  local text = redis.call('HGET', crash_marks, id)
  local mark = text and marks.read(text) or {level = 1, last = '-inf', entries = '', names = {}, payload = ''}
  for _, item in ipairs(items) do
    local name = marks.name_of(item[2])
    -- A payload that is named keeps its old place.
    if not mark.names[name] then
      marks.pass(mark, item)
    end
    mark.names[name] = true
  end
  if not text or #items > 1 then
    mark.level, mark.entries, mark.payload = text and 2 or 1, '', ''
    marks.write(id, mark)
    return
  end
  local kept, count = marks.recent(mark.payload == items[1][2] and mark.entries or '', now / 1000000)
  local died = count + 1 >= tonumber(max_crashes)
  if not died or items[1][4] ~= '' then
    mark.level, mark.entries = died and 3 or 2, kept .. ' ' .. math.floor(now / 1000000) .. ':' .. epoch
    mark.payload = items[1][2]
    marks.write(id, mark)
    return
  end
  marks.pass(mark, items[1])
  bury(id, {table.remove(items, 1)}, poison_error, seconds(now))
  mark.level, mark.entries, mark.payload = 2, '', ''
  -- It stays named: it may wait again, by later calls.
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', crash_marks, id)
  else
    marks.write(id, mark)
  end
end
