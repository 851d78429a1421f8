-- Redis's clock.
--
-- Whole microseconds: a double holds them exactly until the year 2255.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Microseconds as decimal seconds; digits are spelled because tostring() would lose some.
local function seconds(us)
  return string.format('%d.%06d', math.floor(us / 1000000), us % 1000000)
end

-- Longer than 30 years, or no number at all, counts as 30 years: a script must not fail half-way.
local LONGEST = 1000000000

local function delayed(us, delay)
  local pause = tonumber(delay)
  if not (pause and pause < LONGEST) then
    pause = LONGEST
  end
  return seconds(us + math.floor(math.max(0, pause) * 1000000 + 0.5))
end
