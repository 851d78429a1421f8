-- Suspects: ids that were in processing when their owner, or the process of their run, died.
--
-- KEYS: crash_marks
-- A suspect runs alone (level 1), and after another crash payload by payload (level 2). Only crashes of a single payload
-- count, for 72 hours. A payload with too many crashes is condemned: it is buried at once, or, when its calls have records,
-- claimed once more (level 3) with retry_count CONDEMNED, so that the worker stores their results.
-- The mark ends when as many payloads have left the queue as ran at the crash, and one with the largest score of these or a
-- larger one: later calls are no suspects, and earlier ones do not end it for a payload behind them.
-- A mark is '<level>x<left>@<last score> <time>:<epoch> ...\n<crashing payload>'; earlier versions write neither left nor score.
local CONDEMNED = '-2'
local MEMORY = 72 * 3600

local function read_mark(text)
  local level, left, last, entries, payload = string.match(text, '^(%d)x?(%d*)%f[%D]@?([^ \n]*)%f[ \n%z]([^\n]*)\n(.*)$')
  return {
    level = tonumber(level or 1),
    left = tonumber(left or '') or 1,
    last = tonumber(last or '') and last or '-inf',
    entries = entries or '',
    payload = payload or '',
  }
end

local function write_mark(id, mark)
  local head = mark.level .. 'x' .. mark.left .. '@' .. mark.last
  redis.call('HSET', crash_marks, id, head .. mark.entries .. '\n' .. mark.payload)
end

-- Takes payloads that left the queue, up to this score, off a mark. Returns true when none is left.
local function count_off(mark, leaving, score)
  mark.left = math.max(0, mark.left - leaving)
  return mark.left == 0 and tonumber(score) >= tonumber(mark.last)
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
