-- The transfers of a shard that are on their way.
--
-- KEYS: outbox
-- Returns the shards to which they go, as fields of `outbox`.
local function pending_transfers()
  local pending = {}
  for _, field in ipairs(redis.call('HKEYS', outbox)) do
    if not string.find(field, ':', 1, true) then
      pending[#pending + 1] = field
    end
  end
  return pending
end
