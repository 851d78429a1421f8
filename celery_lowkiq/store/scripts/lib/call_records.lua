-- Stores records of calls.
--
-- KEYS: meta calls
-- A call whose result or headers are needed later has a record: a member of the sorted set `calls`, whose scores are all 0.
-- A member is id, \0, digest of the payload (10 bytes), number of the record in the shard (12 hex digits), record. It stays
-- while its payload is claimed, restored or recovered; the owner of the shard deletes it after it has stored the result.
local NONE = {}

-- The flags of jobs with records, by the index of the job in ARGV. The records follow the last job.
local function call_flags(last_job)
  if last_job == #ARGV then
    return NONE
  end
  local flags = {}
  for i = last_job + 1, #ARGV, 3 do
    flags[rest + 4 * ARGV[i]] = 'R'
  end
  return flags
end

-- Stores the records. Returns the stored members by the index of the job in ARGV.
local function record_calls(last_job)
  if last_job == #ARGV then
    return NONE
  end
  redis.call('ZCARD', calls)
  local members = {}
  local number = redis.call('HINCRBY', meta, 'last_call', (#ARGV - last_job) / 3) - (#ARGV - last_job) / 3
  for i = last_job + 1, #ARGV, 3 do
    local job = rest + 4 * ARGV[i]
    number = number + 1
    members[job] = ARGV[job] .. '\0' .. ARGV[i + 1] .. string.format('%012x', number) .. ARGV[i + 2]
    redis.call('ZADD', calls, 0, members[job])
  end
  return members
end
