-- Deletes one payload of a waiting job, or replaces it by another with the same score. A job without payloads is deleted.
--
-- ROLE: operator
-- KEYS: meta @waiting jobs spill spill_order failed errors processing dead tries crash_marks calls
-- POLICY KEYS: debounce? early_due?
-- ARGV: merge policy id payload replaced other signatures signed_score digest other_digest [record new_record]...
--   replaced: '1' replaces the payload by `other`; if the job already has `other`, the two are merged (rule 2)
--   digest, other_digest: of both payloads, when the calls of the payload become calls of `other`; '' when they end
--   signatures, signed_score: see lib/payloads.lua; record, new_record: of these calls, when it is signed anew
-- USES: meta.begin_format payloads.edit waiting.jobs policies.per_run morgue.history processing.orphans
-- Returns: {1 or 0 when the job has no such payload, orphans (see lib/processing.lua)}.
-- Cost: O(log n), or the length of a packed record; plus O(log n) for each waiting call that has its own time and payload.
--   Repeated: no effect because the payload is gone.
local keeps_calls = digest ~= ''

-- The call records of the payload become those of `other`.
local function move_calls()
  local head, records = id .. '\0' .. digest, {}
  for i = rest, #ARGV, 2 do
    records[ARGV[i]] = ARGV[i + 1]
  end
  for _, member in ipairs(redis.call('ZRANGEBYLEX', calls, '[' .. head, '(' .. head .. '\255')) do
    redis.call('ZREM', calls, member)
    local number, record = string.sub(member, #head + 1, #head + 12), string.sub(member, #head + 13)
    redis.call('ZADD', calls, 0, id .. '\0' .. other_digest .. number .. (records[record] or record))
  end
end

if signatures ~= '' then
  begin_signatures(redis.call('HGET', meta, 'format'))
end
local failed_one = redis.call('HEXISTS', jobs, id) == 1 and failed_payload(id)
local changed, is_empty = set_edit(waiting, id, payload, replaced == '1' and other, keeps_calls)
if is_empty then
  remove_waiting(id)
  forget_history(id)
elseif changed == 1 then
  forget_if_passed(id, failed_one)
end
count_payloads(waiting)
local orphans = {}
if keeps_calls then
  if changed == 1 then
    move_calls()
  end
  return {changed, orphans}
end
add_orphan(orphans, id, redis.call('HGET', meta, 'last_call'))
return {changed, orphans}
