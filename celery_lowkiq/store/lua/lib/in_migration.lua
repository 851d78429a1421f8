-- The functions of waiting_index for `moving` are there also before a job is in it.
--
-- KEYS: @waiting
-- USES: due_index
any_moving = true
