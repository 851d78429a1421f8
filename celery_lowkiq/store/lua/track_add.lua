-- Adds calls to a tracker before they are pushed. A known call is unchanged unless it has ended: then it is another
-- call with the same task id. Calls of a cancelled tracker end at once.
--
-- ROLE: caller
-- KEYS: tracker tracked places messages
-- ARGV: channel latest [call what]...
--   latest: when the last call is due: '' now, else the later of '<Unix s>' and '+<s>' (a delay), or one of them
--   what: queue, id and payload of the call
-- USES: time.delay track
-- Returns: 'added', 'cancelled', or 'unknown' for a tracker that has expired.
-- Cost: O(log n) per call.
local kept = redis.call('HMGET', tracker, 'cancelled', 'latest', 'added')
if not kept[1] then
  return 'unknown'
end

local due = now / 1000000
for when in string.gmatch(latest, '%S+') do
  due = math.max(due, tonumber(string.sub(when, 1, 1) == '+' and delayed(now, when) or when))
end
if due > tonumber(kept[2]) then
  redis.call('HSET', tracker, 'latest', string.format('%.0f', math.min(due, now / 1000000 + LONGEST)))
end

local arrival = tonumber(kept[3])
local cancelled = kept[1] == '1'
local first = cancelled and 'failed' or 'enqueued'
for i = rest, #ARGV, 2 do
  local call = ARGV[i]
  local state, place_of_it = where(call)
  if not state then
    arrival = arrival + 1
    place(call, arrival, first)
    write_call(call, {shard = 0, epoch = 0, claim = 0, ended = 0}, '-', '-', ARGV[i + 1])
    add_message(call, first, cancelled and 'cancelled' or '')
  elseif not is_pending(state) then
    place(call, place_of_it, first, state)
  end
end
redis.call('HSET', tracker, 'added', string.format('%.0f', arrival))
finish_update()
return cancelled and 'cancelled' or 'added'
