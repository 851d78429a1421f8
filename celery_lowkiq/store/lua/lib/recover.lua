-- Returns jobs in processing to the queue that no owner runs to their end.
--
-- KEYS: @waiting claimed processing arrived inflight
-- USES: restore processing waiting_index
-- In a migration, jobs that were in processing at the fence wait for a mover when they are back in the queue.
if not any_moving and redis.call('ZCARD', inflight) > 0 then
  any_moving = true
  redis.call('ZCARD', arrived)
end

-- Restores a job that was taken from processing. In a migration, one that was in processing at the fence is hidden from claims
-- until a mover has sorted it: when a failover has lost that it ended, its id may run in another shard since.
local function recover(id, job, time)
  restore_unfinished(id, job, job.items, time)
  if any_moving and redis.call('ZSCORE', inflight, id) and index_score(id) then
    hold(id)
  end
end
