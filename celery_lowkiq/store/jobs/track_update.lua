-- Updates calls of a tracker. Each change of state counts once, even if it comes late or repeatedly: the number of a
-- run (epoch, claim) only grows, and its end comes after its start.
--
-- KEYS: tracker tracked places messages
-- ARGV: channel [call epoch claim state said_in text]...
--   epoch, claim: of the run; 0 for an update from outside a run, which applies only to a pending call
--   said_in, text: state and text of a message to keep, unless empty
-- USES: time track
-- FLAGS: allow-oom
-- Returns: 1 when the tracker was cancelled, so that starting runs must not go on; else 0.
-- Cost: O(log n) per call.
local cancelled = redis.call('HGET', tracker, 'cancelled')
if not cancelled then
  return 0
end
may_write()

local function is_newer(epoch, claim, ended, last_epoch, last_claim, last_ended)
  if epoch ~= last_epoch then
    return epoch > last_epoch
  end
  if claim ~= last_claim then
    return claim > last_claim
  end
  return ended > last_ended
end

for i = rest, #ARGV, 6 do
  local call, epoch, claim, state, said_in, text = unpack(ARGV, i, i + 5)
  local former, arrival = where(call)
  epoch, claim = tonumber(epoch), tonumber(claim)
  local ended = state == 'working' and 0 or 1
  if former and epoch == 0 then
    if is_pending(former) then
      place(call, arrival, state, former)
      add_message(call, said_in, text)
    end
  elseif former then
    local last_epoch, last_claim, last_ended, what = known(call)
    if is_newer(epoch, claim, ended, last_epoch, last_claim, last_ended) then
      if ended == 0 and cancelled == '1' then
        if is_pending(former) then
          place(call, arrival, 'failed', former)
          add_message(call, 'failed', 'cancelled')
        end
      else
        if ended == 0 and last_epoch > 0 and last_ended == 0 then
          add_message(call, 'error', 'interrupted: the worker of its last run is gone')
        end
        place(call, arrival, state, former)
        add_message(call, said_in, text)
        write_call(call, epoch, claim, ended, '-', '-', what)
      end
    end
  end
end
finish_update()
return tonumber(cancelled)
