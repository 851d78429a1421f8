-- Updates calls of a tracker. Each change of state counts once, even if it comes late or repeatedly: the number of a
-- run (epoch, claim) only grows, and its end comes after its start.
--
-- ROLE: caller
-- KEYS: tracker tracked places messages
-- ARGV: channel [call shard epoch claim state said_in text]...
--   shard, epoch, claim: of the run; epoch 0 for an update from outside a run, which applies only to a pending call
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

-- Epochs are numbers of one shard. A call that a migration has moved gets larger claim numbers in its new shard.
local function is_newer(run, last)
  if run.shard == last.shard and run.epoch ~= last.epoch then
    return run.epoch > last.epoch
  end
  if run.claim ~= last.claim then
    return run.claim > last.claim
  end
  return run.shard == last.shard and run.ended > last.ended
end

for i = rest, #ARGV, 7 do
  local call, shard, epoch, claim, state, said_in, text = unpack(ARGV, i, i + 6)
  local former, arrival = where(call)
  local run = {
    shard = tonumber(shard), epoch = tonumber(epoch), claim = tonumber(claim), ended = state == 'working' and 0 or 1,
  }
  if former and run.epoch == 0 then
    if is_pending(former) then
      place(call, arrival, state, former)
      add_message(call, said_in, text)
    end
  elseif former then
    local last, what = known(call)
    if is_newer(run, last) then
      if run.ended == 0 and cancelled == '1' then
        if is_pending(former) then
          place(call, arrival, 'failed', former)
          add_message(call, 'failed', 'cancelled')
        end
      else
        if run.ended == 0 and last.epoch > 0 and last.ended == 0 then
          add_message(call, 'error', 'interrupted: the worker of its last run is gone')
        end
        place(call, arrival, state, former)
        add_message(call, said_in, text)
        write_call(call, run, '-', '-', what)
      end
    end
  end
end
finish_update()
return tonumber(cancelled)
