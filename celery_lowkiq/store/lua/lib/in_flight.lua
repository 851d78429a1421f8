-- In a migration, jobs that were in processing at the fence wait for a mover when they are back in the queue.
--
-- KEYS: @waiting inflight
-- USES: due_index
any_moving = any_moving or redis.call('ZCARD', inflight) > 0
