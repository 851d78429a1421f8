-- Redis's clock, moved by the microseconds at `clock_key`. Only scripts of a test's store begin with this.
local server = redis
local redis = setmetatable({
  call = function(command, ...)
    if command ~= 'TIME' then
      return server.call(command, ...)
    end
    local time = server.call('TIME')
    local us = time[1] * 1000000 + time[2] + (server.call('GET', clock_key) or 0)
    return {math.floor(us / 1000000), us % 1000000}
  end,
}, {__index = server})
