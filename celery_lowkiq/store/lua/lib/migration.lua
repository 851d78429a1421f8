-- The state of a shard in a migration: a change of its queue's number of shards while it is in use.
--
-- KEYS: meta
-- meta's `gen` is the number of the last migration that the shard has joined. Its `shards`, the route, is '<n>' before that;
-- 'closed' from its fence until it opens; '<n>><m>' until it is sealed, and '<m>' then, or 'retired' when it is none of m shards.
local function state_of(gen)
  local stored = redis.call('HMGET', meta, 'shards', 'gen')
  return stored[2] == gen and stored[1] or ''
end

-- Returns true when jobs may leave and enter the shard.
local function is_open(gen)
  return string.find(state_of(gen), '>', 1, true) ~= nil
end

-- Returns true also while the shard is closed, when it receives and forgets the transfers of a migration that was aborted.
local function has_joined(gen)
  return state_of(gen) == 'closed' or is_open(gen)
end

-- The records of a transfer as one text: what the shard knows of each id, by the names of the keys that have it. A record is the number of its values, \n, and each name and value behind its length. `calls` is a list: each is a value of its
-- own.
local function pack_records(records)
  local parts = {}
  for _, record in ipairs(records) do
    local values = {}
    for name, value in pairs(record) do
      for _, each in ipairs(type(value) == 'table' and value or {value}) do
        values[#values + 1] = #name .. ' ' .. name .. #each .. ' ' .. each
      end
    end
    parts[#parts + 1] = #values .. '\n' .. table.concat(values)
  end
  return table.concat(parts)
end

local function unpack_records(text)
  local records, at = {}, 1

  local function value()
    local _, stop, length = string.find(text, '^(%d+) ', at)
    at = stop + 1 + length
    return string.sub(text, stop + 1, at - 1)
  end

  while at <= #text do
    local _, stop, count = string.find(text, '^(%d+)\n', at)
    local record, calls = {}, {}
    at = stop + 1
    for _ = 1, count do
      local name, each = value(), value()
      if name == 'calls' then
        calls[#calls + 1] = each
      else
        record[name] = each
      end
    end
    record.calls = #calls > 0 and calls or nil
    records[#records + 1] = record
  end
  return records
end

-- The shards to which transfers are on their way, as fields of `outbox`.
local function pending_transfers(outbox)
  local pending = {}
  for _, field in ipairs(redis.call('HKEYS', outbox)) do
    if not string.find(field, ':', 1, true) then
      pending[#pending + 1] = field
    end
  end
  return pending
end

-- PART: moving
-- The index `moving`: waiting jobs that no claim takes until a mover has sorted them (waiting.lua).
--
-- KEYS: @waiting
-- USES: waiting.index
any_moving = true

-- Jobs that one script hides at most; `unpack` takes a limited number of values, too.
local HIDDEN = 1000

-- Members and scores of a sorted set, as arguments of ZADD; and the members.
local function entries_of(index, stop)
  local found, ids = redis.call('ZRANGE', index, 0, stop, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    found[i], found[i + 1] = found[i + 1], found[i]
  end
  return found, ids
end

-- Makes the scores of jobs negative in `by_priority`, so that no claim finds them.
local function hide_priorities(ids)
  local hidden = {}
  for i, score in ipairs(redis.call('ZMSCORE', by_priority, unpack(ids))) do
    local priority = score and math.floor(tonumber(score) / PRIORITY_SPAN) or 0
    if priority > 0 then
      hidden[#hidden + 1], hidden[#hidden + 2] = priority_score(-priority, score - priority * PRIORITY_SPAN), ids[i]
    end
  end
  if #hidden > 0 then
    redis.call('ZADD', by_priority, unpack(hidden))
  end
end

-- Moves jobs of an index to `moving`, at most `most`. Returns how many that cost. Much of `due` costs nothing where `moving` has
-- little: then these join it, and it takes their place.
local function hold_part(index, most)
  local waits = redis.call('ZCARD', moving)
  if index == due and waits < most and waits < redis.call('ZCARD', due) then
    local found = waits > 0 and entries_of(moving, -1)
    if found then
      redis.call('ZADD', due, unpack(found))
    end
    redis.call('RENAME', due, moving)
    return waits
  end
  local found, ids = entries_of(index, most - 1)
  if #ids == 0 then
    return 0
  end
  redis.call('ZADD', moving, unpack(found))
  redis.call('ZREM', index, unpack(ids))
  if index == due_prioritized then
    hide_priorities(ids)
  end
  return #ids
end

-- Moves waiting jobs to `moving`, at most HIDDEN. Returns whether others may be left.
local function hold_some()
  local left = HIDDEN
  for _, index in ipairs(any_special and {due, due_prioritized, due_paused} or {due}) do
    left = left - hold_part(index, left)
    if left <= 0 then
      return true
    end
  end
  return false
end

-- Returns the perform_in of waiting jobs, false without one. `moving` has most of them.
local function moving_scores(ids)
  local times = redis.call('ZMSCORE', moving, unpack(ids))
  for i, id in ipairs(ids) do
    times[i] = times[i] or index_score(id) or false
  end
  return times
end

-- Moves jobs from `moving` to their own indexes.
local function release_moving(ids)
  local times = #ids > 0 and redis.call('ZMSCORE', moving, unpack(ids)) or {}
  local found, plain = {}, {}
  for i, id in ipairs(ids) do
    if times[i] then
      found[#found + 1] = id
      plain[#plain + 1], plain[#plain + 2] = times[i], id
    end
  end
  if #found == 0 then
    return
  end
  redis.call('ZREM', moving, unpack(found))
  if not (any_paused or any_prioritized) then
    due_add(plain)
    return
  end
  for i = 1, #plain, 2 do
    index_put(plain[i + 1], plain[i], priority_of(plain[i + 1]))
  end
end

-- PART: given_elsewhere
-- Test: another server than this one gave the lease of a shard.
--
-- KEYS: lease meta
-- USES: lease.server
-- Its owner may run jobs whose claims a failover has lost: the shard knows all claims only under a lease of this server. So may
-- an unknown owner, when the failover has lost the lease, or that a released shard was acquired. A process that has released
-- the shard before the end of its batch may run on, too: such a lease of this server counts like one of another server.

-- The lease as '<owner> <epoch> <counter> <this server>'; '' for one of this server, for a shard that has never had an owner,
-- and for a user who may not ask which server this is.
local function given_elsewhere()
  local found = redis.call('HMGET', lease, 'owner', 'server', 'leaving', 'epoch', 'counter')
  local had_owner = found[1] or redis.call('HEXISTS', meta, 'request') == 1
  local server = had_owner and server_name() or ''
  if server == '' or found[2] == server and found[3] ~= '1' then
    return ''
  end
  return table.concat({found[1] or '', found[4] or '', found[5] or '', server}, ' ')
end
