-- Stores the progress that a run reports, while it is the last run of its call.
--
-- ROLE: worker
-- KEYS: tracker tracked places messages
-- ARGV: current total text [call epoch claim]...
--   current, total: numbers, or '-' for none
-- USES: time track
-- Returns: the number of calls updated.
-- Cost: O(1) per call.
local kept = 0
for i = rest, #ARGV, 3 do
  local call, epoch, claim = unpack(ARGV, i, i + 2)
  local last, what = known(call)
  if last.epoch == tonumber(epoch) and last.claim == tonumber(claim) and last.ended == 0 then
    write_call(call, last, current, total, what)
    add_message(call, 'working', text)
    kept = kept + 1
  end
end
return kept
