-- Returns jobs in processing to the queue that no owner runs to their end.
--
-- KEYS: @waiting claimed processing inflight
-- USES: in_flight restore processing waiting_index

-- Restores a job that was taken from processing. In a migration, one that was in processing at the fence is hidden from claims
-- until a mover has sorted it: when a failover has lost that it ended, its id may run in another shard since.
local function recover(id, job, time)
  restore_unfinished(id, job, job.items, time)
  if any_moving and redis.call('ZSCORE', inflight, id) and index_score(id) then
    hold(id)
  end
end
