-- Suspects: ids that were in processing when their owner, or the process of their run, died.
--
-- KEYS: crash_marks
-- A suspect runs alone (level 1), and after another crash payload by payload (level 2). Only crashes of a single payload
-- count, for 72 hours. A payload with too many crashes is condemned: it is buried at once, or, when its calls have records,
-- claimed once more (level 3) with retry_count CONDEMNED, so that the worker stores their results.
-- The mark ends when as many payloads have left the queue as ran at the crash: later ones are no suspects.
-- A mark is '<level>x<left> <time>:<epoch> ...\n<crashing payload>'; left: number of payloads, 1 in a mark without it.
local CONDEMNED = '-2'
local MEMORY = 72 * 3600

-- Returns the level, the entries of crashes, their payload, and the number of payloads left.
local function read_mark(mark)
  local level, left, entries, payload = string.match(mark, '^(%d)x?(%d*)%f[%D]([^\n]*)\n(.*)$')
  return tonumber(level or 1), entries or '', payload or '', tonumber(left or '') or 1
end

local function write_mark(id, level, left, entries, payload)
  redis.call('HSET', crash_marks, id, level .. 'x' .. left .. entries .. '\n' .. payload)
end

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
