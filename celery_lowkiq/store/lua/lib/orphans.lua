-- Lists jobs that a script removed, and that may have had calls, for its reply: id, number of the shard's last call,
-- processing record or '', ... Python ends these calls (store/call_records.py, orphaned_records).
--
-- KEYS: processing
local function add_orphan(orphans, id, last_call)
  if last_call and last_call ~= '0' then
    for _, value in ipairs({id, last_call, redis.call('HGET', processing, id) or ''}) do
      orphans[#orphans + 1] = value
    end
  end
end
