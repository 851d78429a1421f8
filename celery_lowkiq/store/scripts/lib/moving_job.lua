-- Moves one job to the index `moving` (moving_index.lua).
--
-- KEYS: @waiting
-- USES: waiting_index

-- Moves a waiting job to `moving`.
local function hold(id)
  if not is_moving(id) then
    local perform_in, priority = index_score(id), priority_of(id)
    index_remove(id)
    index_hold(id, perform_in)
    index_put(id, perform_in, priority)
  end
end
