-- Takes all that the shard knows of ids that belong to another shard, and writes it as a numbered transfer into `outbox`, where
-- it stays until that shard has received it. An id that is in processing stays, and all ids stay while the owner may run jobs
-- that the shard does not know (lib/migration.lua). An id that is larger than a transfer leaves in several, its last
-- payloads first: no claim takes it until the last one.
--
-- ROLE: operator
-- KEYS: lease meta @waiting! jobs spill spill_order calls debounce early_due done_scores buckets failed errors claimed processing tries crash_marks @morgue inflight outbox
-- ARGV: gen shard number counts limit max_bytes silent [id]...
--   gen: number of the migration; shard: where the ids belong
--   number: of the last transfer that it has received from here: a Redis with older data must not use a number twice
--   counts: '1' takes the counts of the shard, after its ids: it will be retired
--   silent: the owner of the shard, as read_moves.lua returns it, when its lease has run out since; else ''
--   limit, max_bytes: maximum number of payloads and call records of a transfer, and of their bytes
-- USES: meta.format payloads payloads.last meta.payload_count migration.moving migration migration.given_elsewhere
-- FLAGS: allow-oom
-- Returns: {number of the pending transfer or 0, its records, {id, ...} of which nothing is left here, {id, ...} in processing};
--   {} when the shard is not in this migration. With a pending transfer, that is all, and all that a closed shard gives.
-- Cost: O(log n) a payload, and INFO. Repeated: the same transfer, until it is forgotten.
local pending = has_joined(gen) and redis.call('HGET', outbox, shard)
if pending then
  local last, data = string.match(pending, '^(%d+) (.*)$')
  return {tonumber(last), data, {}, {}}
elseif not is_open(gen) then
  return {}
end

local COUNTS = {'processed', 'failed', 'merged', 'dead', 'dropped'}
-- Values of an id: name, and key.
local IN_HASHES = {
  errors = errors, debounce = debounce, early_due = early_due, done_scores = done_scores, tries = tries,
  crash_marks = crash_marks, dead_errors = dead_errors,
}
local IN_SETS = {failed = failed, paused = paused, buckets = buckets, dead = dead}
local waiting = {records = jobs, spill = spill, spill_order = spill_order}
local morgue = {records = dead_jobs, spill = dead_spill, spill_order = dead_spill_order}
local left, bytes_left = tonumber(limit), tonumber(max_bytes)
local none, busy, ids = {}, {}, {}
local given = {unpack(ARGV, rest)}
local owner = given_elsewhere()
local all_busy = owner ~= '' and owner ~= silent
local numbers = #given > 0 and redis.call('ZMSCORE', claimed, unpack(given)) or {}
for i, id in ipairs(given) do
  local is_busy = all_busy or numbers[i] or redis.call('HEXISTS', processing, id) == 1
  table.insert(is_busy and busy or ids, id)
end

-- Values of the ids, by name and position.
local function read_all()
  local found = {}
  for name, key in pairs(IN_HASHES) do
    found[name] = redis.call('HLEN', key) > 0 and redis.call('HMGET', key, unpack(ids)) or nil
  end
  for name, key in pairs(IN_SETS) do
    found[name] = redis.call('ZCARD', key) > 0 and redis.call('ZMSCORE', key, unpack(ids)) or nil
  end
  return found
end

local function is_full()
  return left <= 0 or bytes_left <= 0
end

local function took(count, text)
  left, bytes_left = left - count, bytes_left - #text
end

-- Returns members of `calls`, and whether the id has others.
local function take_calls(id)
  local members = redis.call('ZRANGEBYLEX', calls, lex_min(id), lex_max(id), 'LIMIT', 0, left + 1)
  local taken = {}
  for i, member in ipairs(members) do
    if is_full() then
      break
    end
    taken[i] = member
    took(1, member)
  end
  if #taken > 0 then
    redis.call('ZREM', calls, unpack(taken))
  end
  return #taken > 0 and taken or nil, #taken < #members
end

-- Returns a packed record, and whether the id has other payloads.
local function take_payloads(set, id)
  if is_full() then
    return nil, redis.call('HEXISTS', set.records, id) == 1
  end
  local count, record, more = set_take_last(set, id, left, bytes_left)
  took(count, record or '')
  return record, more
end

local any_calls, any_dead = redis.call('ZCARD', calls) > 0, redis.call('HLEN', dead_jobs) > 0
local last_claim = any_calls and redis.call('HGET', meta, 'claim')

-- Takes the payloads and call records of an id. Returns its record; record.part is set when there are others.
local function take(id)
  local record, more_calls, more_dead, more = {id = id}, false, false, false
  if any_calls then
    record.calls, more_calls = take_calls(id)
    record.claim = record.calls and last_claim or nil
  end
  if any_dead then
    record.dead_jobs, more_dead = take_payloads(morgue, id)
  end
  -- The kept data of the waiting job leave with its first payloads, so these leave after all else.
  if not more_dead then
    record.jobs, more = take_payloads(waiting, id)
  end
  record.part = (more_calls or more_dead or more) and '1' or nil
  return record
end

local records, done = {}, {}
local values, times = {}, {}
if #ids > 0 then
  values, times = read_all(), moving_scores(ids)
end
for i, id in ipairs(ids) do
  if is_full() then
    break
  end
  local record = take(id)
  local is_empty = next(record, next(record)) == nil
  if times[i] then
    record.perform_in, is_empty = times[i], false
    local priority = priority_of(id)
    record.priority = priority > 0 and string.format('%d', priority) or nil
  end
  for name, found in pairs(values) do
    if found[i] then
      record[name], is_empty = found[i], false
    end
  end
  if record.part then
    -- It is not claimed here meanwhile: a call record may have left before its payload.
    redis.call('HSET', outbox, 'part:' .. id, '1')
    if times[i] then
      hold(id)
    end
  else
    done[#done + 1] = id
  end
  table.insert(is_empty and none or records, is_empty and id or record)
end

if #done > 0 then
  index_remove(unpack(done))
  for name in pairs(values) do
    redis.call(IN_HASHES[name] and 'HDEL' or 'ZREM', IN_HASHES[name] or IN_SETS[name], unpack(done))
  end
  redis.call('ZREM', dead_ids, unpack(done))
  redis.call('ZREM', inflight, unpack(done))
  for i, id in ipairs(done) do
    done[i] = 'part:' .. id
  end
  redis.call('HDEL', outbox, unpack(done))
end
count_payloads(waiting)
if counts == '1' then
  local taken = redis.call('HMGET', meta, unpack(COUNTS))
  local record = {id = ''}
  for i, name in ipairs(COUNTS) do
    record[name .. '_count'] = taken[i] or nil
  end
  redis.call('HDEL', meta, unpack(COUNTS))
  records[#records + 1] = next(record, next(record)) and record or nil
end
if #records == 0 then
  return {0, '', none, busy}
end
records[1].signed = redis.call('HGET', meta, 'format') == SIGNED and '1' or nil
local sent = 'sent:' .. shard
local last = math.max(tonumber(redis.call('HGET', outbox, sent) or 0), tonumber(number)) + 1
local data = pack_records(records)
redis.call('HSET', outbox, sent, last, shard, last .. ' ' .. data)
return {last, data, none, busy}
