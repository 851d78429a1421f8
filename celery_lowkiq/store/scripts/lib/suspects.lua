-- Suspects: ids that were in processing when their owner died.
--
-- KEYS: crash_marks
-- A suspect runs alone (level 1), and after another crash payload by payload (level 2). Only crashes of a single payload
-- count, for 72 hours. A payload that caused too many is condemned: it goes to the morgue at once, or, when its calls
-- have records, is handed out once more (level 3), with CONDEMNED as retry_count, so that their results are written.
-- A mark is '<level> <time>:<epoch> ...\n<payload that the crashes are of>'.
local CONDEMNED = '-2'
local MEMORY = 72 * 3600

local function read_mark(mark)
  local level, entries, payload = string.match(mark, '^(%d)([^\n]*)\n(.*)$')
  return tonumber(level or 1), entries or '', payload or ''
end

local function write_mark(id, level, entries, payload)
  redis.call('HSET', crash_marks, id, level .. entries .. '\n' .. payload)
end

-- The entries that are not older than MEMORY, but for those of an epoch, and how many they are.
local function recent(entries, now_s, without)
  local kept, count = '', 0
  for time, epoch in string.gmatch(entries, ' (%d+):(%d+)') do
    if tonumber(time) > now_s - MEMORY and epoch ~= without then
      kept, count = kept .. ' ' .. time .. ':' .. epoch, count + 1
    end
  end
  return kept, count
end
