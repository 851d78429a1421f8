-- Due times that come from outside.
--
-- USES: time
-- A due time (s) that is not before `us`: a job waits from its arrival on, so that lag is never longer.
local function due_from(us, time)
  return tonumber(time) * 1000000 < us and seconds(us) or time
end
