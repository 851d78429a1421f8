-- Merges lines of a dump into a shard (rules 2 and 3). A repeated line has no effect.
--
-- ROLE: operator
-- KEYS: meta senders @waiting jobs spill spill_order failed errors calls @morgue
-- POLICY KEYS: debounce? early_due?
-- ARGV: shards merge policy sender channel index last_score [n kind id when retry_count error priority count [score payload mark]*count]...
--   shards: the declared number; sender: name of the dump; n: number of the line, which grows
--   last_score: in us; the shard generates larger scores from now on
--   kind: waiting, dead, held (dead, and holds its id), or calls (with digest, record, '' in place of score, payload, mark)
--   mark: flag and signature
-- USES: meta.begin_format time.delay morgue.merge waiting.index waiting.wake payloads.change waiting.jobs waiting.holds policies policies.keep
-- Returns: the number of new lines; error SHARDS <stored number> when the number of shards differs.
-- Cost: O(log n) per payload.
--
-- Seconds for which loaded lines are remembered.
local MEMORY = 7 * 24 * 3600

local stored = redis.call('HMGET', meta, 'shards', 'score', 'format')
if stored[1] and is_foreign(stored[3]) then
  return refuse_format(stored[3])
end
if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end
local last = tonumber(string.match(redis.call('HGET', senders, sender) or '0', '^%d+') or 0)
local before, now = first_due(), now_us()
local kinds = {}

-- A job that failed brings its time (rule 3); otherwise a waiting job keeps its time (rule 2).
function kinds.waiting(id, items, when, retry_count, message, priority)
  when = due_from(now, when)
  local known = index_score(id)
  local priority = known and math.min(priority, priority_of(id)) or tonumber(priority)
  if tonumber(retry_count) < 0 then
    index_put(id, known or when, priority)
  else
    index_put(id, when, priority)
    redis.call('ZADD', failed, retry_count, id)
    redis.call('HSET', errors, id, message)
  end
  set_add(waiting, id, items, false)
  if hooks.trim then
    hooks.trim(id, items)
  end
end

function kinds.dead(id, items, when, _, message)
  merge_dead(id, items, when, message, false)
end

function kinds.held(id, items, when, _, message)
  kinds.dead(id, items, when, _, message)
  begin_hold(id, when)
end

function kinds.calls(id, items)
  local number = redis.call('HINCRBY', meta, 'last_call', #items) - #items
  for i, item in ipairs(items) do
    redis.call('ZADD', calls, 0, id .. '\0' .. item[1] .. string.format('%012x', number + i) .. item[2])
  end
end

local at, new, is_signed = rest, 0, false
while at <= #ARGV do
  local n, kind, id, when, retry_count, message, priority, count = unpack(ARGV, at, at + 7)
  local stop = at + 7 + 3 * count
  if tonumber(n) > last then
    local items = {}
    for i = at + 8, stop, 3 do
      local flag, signature = string.match(ARGV[i + 2], '^([rR]?)(.*)$')
      is_signed = is_signed or signature ~= ''
      items[#items + 1] = {ARGV[i], ARGV[i + 1], tonumber(ARGV[i]), flag, signature}
    end
    kinds[kind](id, items, when, retry_count, message, priority)
    last, new = tonumber(n), new + 1
  end
  at = stop + 1
end
if is_signed then
  begin_signatures(stored[3])
end
count_payloads(waiting)
if new > 0 then
  local known_until = math.floor(now / 1000000) + MEMORY
  redis.call('HSET', senders, sender, string.format('%.0f %.0f', last, known_until))
  redis.call('HSET', meta, 'score', string.format('%.0f', math.max(tonumber(stored[2] or 0), tonumber(last_score))))
  wake(before)
end
return new
