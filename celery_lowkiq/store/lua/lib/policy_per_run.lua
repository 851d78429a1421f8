-- Policy per_run = 1: each payload runs alone, so the failure of a waiting job is that of its first payload. It does not pass to
-- a payload that gets in front of that one.
--
-- KEYS: jobs spill_order failed errors
-- USES: policies payload_set_read waiting
local failures = {}

function failures.first_payload(id)
  local record = redis.call('HGET', jobs, id)
  if record == SPILLED then
    local member = redis.call('ZRANGEBYLEX', spill_order, lex_min(id), lex_max(id), 'LIMIT', 0, 1)[1]
    return member and member_item(id, member)[2]
  end
  local item = record and unpack_items(record)[1]
  return item and item[2]
end

-- The payload that has failed, of a waiting job; nil without one.
function failures.failed_payload(id)
  return options.per_run == 1 and redis.call('ZSCORE', failed, id) and failures.first_payload(id) or nil
end

-- The payloads of a waiting job have not failed, and it keeps its perform_in.
function failures.forget(id)
  if redis.call('ZREM', failed, id) == 1 then
    redis.call('HDEL', errors, id)
    if hooks.clear then
      hooks.clear(id)
    end
  end
end

-- Forgets the failure of a payload (nil: none) when it is not the first one any more.
function failures.forget_if_passed(id, payload)
  if payload and failures.first_payload(id) ~= payload then
    failures.forget(id)
  end
end
