-- Finds the largest numbers in a part of a key, so that a rewritten meta continues above them, and the extras of the records of
-- waiting jobs (lib/payloads.lua), to count their payloads anew.
--
-- ROLE: operator
-- KEYS: meta claimed? processing? jobs? spill_order? calls? done_scores? dead_jobs? dead_spill_order?
-- ARGV: part cursor limit
--   part: processing, jobs, spill_order, calls, done_scores, dead_jobs, or dead_spill_order; limit: approximate number of entries to read
-- USES: payloads processing
-- Returns: {cursor, score or '', last arrival, first arrival, number of a call, extra of all records as meta has it,
--   [id, extra]... of records of waiting jobs but those of 0}.
-- Cost: O(limit). Read-only.
local KEY = {processing = processing, jobs = jobs, spill_order = spill_order, calls = calls, done_scores = done_scores, dead_jobs = dead_jobs,
  dead_spill_order = dead_spill_order}
-- In s; larger scores have no exact microseconds.
local LARGEST = 2 ^ 53 / 1000000
local score, back, front, call, extras = nil, 0, 0, 0, {}

local function add_score(number)
  if number and number <= LARGEST and number > (score or -LARGEST) then
    score = number
  end
end

local function add_items(items)
  for _, item in ipairs(items) do
    add_score(item[3])
  end
end

local read = {}

function read.processing(_, record)
  add_items(read_processing(record).items)
  call = math.max(call, tonumber(string.match(record, '^%d+@(%d+)') or 0))
end

function read.dead_jobs(_, record)
  local items = record == SPILLED and {} or unpack_items(record)
  add_items(items)
  return #items - 1
end

function read.jobs(id, record)
  local extra = read.dead_jobs(id, record)
  if extra ~= 0 then
    extras[#extras + 1], extras[#extras + 2] = id, extra
  end
end

function read.spill_order(member)
  local id = string.match(member, '^[^%z]*')
  local arrived = tonumber(string.sub(member, #id + 18, #id + 29), 16)
  if arrived then
    back, front = math.max(back, arrived - ARRIVAL_ZERO), math.min(front, arrived - ARRIVAL_ZERO)
  end
  add_score(member_item(id, member)[3])
end

function read.calls(member)
  local id = string.match(member, '^[^%z]*')
  call = math.max(call, tonumber(string.sub(member, #id + 12, #id + 23), 16) or 0)
end

function read.done_scores(_, done_score)
  add_score(tonumber(string.match(done_score, '^(%S+)')))
end
read.dead_spill_order = read.spill_order

local command = (part == 'spill_order' or part == 'dead_spill_order' or part == 'calls') and 'ZSCAN' or 'HSCAN'
local found = redis.call(command, KEY[part], cursor, 'COUNT', limit)
for i = 1, #found[2], 2 do
  read[part](found[2][i], found[2][i + 1])
end
local function text(number)
  return string.format('%.0f', number)
end
local reply = {
  found[1], score and string.format('%.17g', score) or '', text(back), text(front), text(call), redis.call('HGET', meta, 'extra') or '0',
}
for _, value in ipairs(extras) do
  reply[#reply + 1] = value
end
return reply
