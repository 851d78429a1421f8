-- Reads the number of entries of each key of a shard, and which keys have the wrong type.
--
-- ROLE: reader
-- KEYS: lease? meta? senders? @waiting? jobs? spill? spill_order? calls? debounce? early_due? done_scores? buckets? failed? errors? claimed? processing? tries? crash_marks? dead? dead_ids? dead_jobs? dead_spill? dead_spill_order? dead_errors? inflight? arrived? outbox?
-- ARGV: [probe]...
--   probe: the command that counts the entries of each key, in the order of the keys
-- USES:
-- Returns: {number of shards or '', 1 when the lease has an owner, claimable jobs with a priority,
--   {position, ...} of keys of the wrong type, {entries, ...}}.
-- Cost: O(log n) in all.
local wrong, counts, is_wrong = {}, {}, {}
for i, key in ipairs(KEYS) do
  local count = redis.pcall(ARGV[i], key)
  if type(count) == 'table' then
    wrong[#wrong + 1], is_wrong[key], count = i, true, 0
  end
  counts[i] = count
end
local shards = not is_wrong[meta] and redis.call('HGET', meta, 'shards') or ''
local owner = not is_wrong[lease] and redis.call('HGET', lease, 'owner') or ''
local urgent = not is_wrong[by_priority] and redis.call('ZCOUNT', by_priority, '(0', '+inf') or 0
return {shards, owner ~= '' and 1 or 0, urgent, wrong, counts}
