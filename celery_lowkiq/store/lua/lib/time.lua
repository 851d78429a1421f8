-- Redis's clock.
--
-- Whole microseconds, exact in a double until the year 2255.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Formats microseconds as decimal seconds; tostring() would lose digits.
local function seconds(us)
  return string.format('%d.%06d', math.floor(us / 1000000), us % 1000000)
end

-- PART: delay
-- USES: time
-- Maximum delay in s: 30 years. Also used for a text that is not a number because a script must not fail after a write.
local LONGEST = 1000000000

local function delayed(us, delay)
  local pause = tonumber(delay)
  if not (pause and pause < LONGEST) then
    pause = LONGEST
  end
  return seconds(us + math.floor(math.max(0, pause) * 1000000 + 0.5))
end

-- A due time (s) that is not before `us`: a job waits from its arrival on, so that lag is never longer.
local function due_from(us, time)
  return tonumber(time) * 1000000 < us and seconds(us) or time
end

-- PART: test
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
