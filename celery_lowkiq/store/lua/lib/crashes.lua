-- Crashes of owners, and of processes of runs, while jobs were in processing.

-- PART: marks
-- Suspects: ids that were in processing when their owner, or the process of their run, died.
--
-- KEYS: crash_marks
-- A suspect runs alone (level 1), and after another crash payload by payload (level 2). Only crashes of a single payload
-- count, for 72 hours. A payload with too many crashes is condemned: it is buried at once, or, when its calls have records,
-- claimed once more (level 3) with retry_count CONDEMNED, so that the worker stores their results.
-- A mark names the payloads that ran at a crash. It ends when all of them have left the queue: other calls are no suspects.
-- With merge=max, a later call of a named payload moves it behind others, again and again: so it also runs alone, as a copy, in
-- its old place, which is not behind the largest score of the crash (claim.lua).
-- A mark is '<level>@<largest score> <time>:<epoch> ... =<names>\n<crashing payload>'.
local CONDEMNED = '-2'
-- Hex digits of the name of a payload.
local DIGITS = 10

local function name_of(payload)
  return string.sub(redis.sha1hex(payload), 1, DIGITS)
end

-- The longest mark has a payload: one above 4 MiB is foreign.
local function read_mark(text)
  local level, last, entries, payload = string.match(#text <= 4194304 and text or '', '^(%d)@([^ \n]*)%f[ \n]([^\n]*)\n(.*)$')
  local names = {}
  for name in string.gmatch(string.match(entries or '', ' =(%x+)') or '', string.rep('%x', DIGITS)) do
    names[name] = true
  end
  return {
    level = tonumber(level or 1),
    last = tonumber(last or '') and last or '-inf',
    entries = (string.gsub(entries or '', ' =%x+', '')),
    names = names,
    payload = payload or '',
  }
end

local function write_mark(id, mark)
  local names = {}
  for name in pairs(mark.names) do
    names[#names + 1] = name
  end
  table.sort(names)
  local list = #names > 0 and ' =' .. table.concat(names) or ''
  redis.call('HSET', crash_marks, id, mark.level .. '@' .. mark.last .. mark.entries .. list .. '\n' .. mark.payload)
end

-- The old places of payloads are not behind this item any more: what precedes it runs before they run once more.
local function passes(mark, item)
  if item[3] > tonumber(mark.last) then
    mark.last = item[1]
  end
end

-- PART: recent
-- When crashes were counted against a payload.
local MEMORY = 72 * 3600

-- Returns the entries of the last MEMORY s, except those of epoch `without`, and their number.
local function recent(entries, now_s, without)
  local kept = {}
  for time, epoch in string.gmatch(entries, ' (%d+):(%d+)') do
    if tonumber(time) > now_s - MEMORY and epoch ~= without then
      kept[#kept + 1] = ' ' .. time .. ':' .. epoch
    end
  end
  return table.concat(kept), #kept
end

-- PART: count
-- Counts crashes against the jobs that ran.
--
-- KEYS: crash_marks jobs
-- USES: time crashes.marks crashes.recent morgue
--
-- Counts a crash at `now` (us) of the owner with this epoch ('0': of a process of a living owner) against a job; after
-- max_crashes, its payload goes to the morgue.
local function suspect(id, items, now, epoch, max_crashes, poison_error)
  local text = redis.call('HGET', crash_marks, id)
  local mark = text and read_mark(text) or {level = 1, last = '-inf', entries = '', names = {}, payload = ''}
  for _, item in ipairs(items) do
    local name = name_of(item[2])
    -- A payload that is named keeps its old place.
    if not mark.names[name] then
      passes(mark, item)
    end
    mark.names[name] = true
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
  passes(mark, items[1])
  bury(id, {table.remove(items, 1)}, poison_error, seconds(now))
  mark.level, mark.entries, mark.payload = 2, '', ''
  -- It stays named: it may wait again, by later calls.
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('HDEL', crash_marks, id)
  else
    write_mark(id, mark)
  end
end
