-- Deletes one payload of a dead job, or replaces it by another with the same score. An id that a job without payloads held goes
-- on.
--
-- ROLE: operator
-- KEYS: meta @waiting jobs processing tries crash_marks @morgue
-- ARGV: merge policy channel index id payload replaced other signatures signed_score
--   replaced: '1' replaces the payload by `other`; if the job already has `other`, the two are merged (rule 2)
--   signatures, signed_score: see lib/payloads.lua
-- USES: meta.begin_format morgue time waiting.index waiting.wake payloads.edit waiting.holds morgue.history
-- Returns: 1, or 0 when the job has no such payload. Error SHARDS <stored route> in a migration.
-- Cost: O(log n), or the length of a packed record. Repeated: no effect because the payload is gone.
local refused = refuse_in_migration()
if refused then
  return refused
end
if signatures ~= '' then
  begin_signatures(redis.call('HGET', meta, 'format'))
end
local before = first_due()
local changed, is_empty = set_edit(morgue, id, payload, replaced == '1' and other, false)
if is_empty then
  remove_dead(id)
  end_hold(id)
  forget_history(id)
end
wake(before)
return changed
