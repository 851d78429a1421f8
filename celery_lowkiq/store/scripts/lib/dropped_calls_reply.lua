-- Reads the reply of a push that dropped calls from its text (dropped_calls.lua).
local function drops_reply(text)
  local reply = {string.match(text, '^[%d ]*')}
  local at = #reply[1] + 1
  while at <= #text do
    local _, stop, length = string.find(text, '^\n(%d+) ', at)
    at = stop + 1 + length
    reply[#reply + 1] = string.sub(text, stop + 1, at - 1)
  end
  return reply
end
