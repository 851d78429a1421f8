-- The log of a failing job's tries: one line each, oldest first.
--
-- KEYS: tries jobs dead
-- ARGV: owner
-- A line has time, retry_count, node and the last line of the error, separated by tabs. The log is deleted with the job, but
-- stays while the id is in the morgue.
local TRIES = 10
local any_tries = redis.call('HLEN', tries) > 0

local function log_try(id, at, retry_count, text)
  if redis.call('HEXISTS', jobs, id) == 0 and not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
    return
  elseif text == '' then
    return
  end
  -- A log above 64 KiB is foreign.
  local lines, log = {}, redis.call('HGET', tries, id) or ''
  for line in string.gmatch(#log <= 65536 and log or '', '[^\n]+') do
    lines[#lines + 1] = line
  end
  local node = string.match(owner, '^(.+)%-[^-]*$') or owner
  lines[#lines + 1] = table.concat({at, retry_count, node, text}, '\t')
  redis.call('HSET', tries, id, table.concat(lines, '\n', math.max(1, #lines - TRIES + 1)))
end

local function end_log(id)
  if any_tries and not redis.call('ZSCORE', dead, id) then
    redis.call('HDEL', tries, id)
  end
end
