-- Lists the calls that policies dropped, for the reply of a push: positions of its own dropped calls, then orphans.
--
-- KEYS: meta calls
-- USES: policies policy_max_length
-- The sender's entry keeps the reply as text, for a repeated push: positions in a line, then each value behind its
-- length. The processing records are those of the eviction: a payload that was in processing then may be waiting again
-- when the push is repeated, and its calls with it.
local drop_call, drops_text
if hooks.drops_call then
  local positions = {}
  evicted = evicted or {}

  -- Drops the call of the job in ARGV from `i` on, with its record.
  function drop_call(i, record)
    redis.call('HINCRBY', meta, 'dropped', 1)
    if record then
      redis.call('ZREM', calls, record)
      positions[#positions + 1] = (i - rest) / 4
    end
  end

  -- The reply as text; '' when no call with a record was dropped.
  function drops_text()
    if #positions + #evicted == 0 then
      return ''
    end
    local parts = {table.concat(positions, ' ')}
    for _, value in ipairs(evicted) do
      parts[#parts + 1] = #value .. ' ' .. value
    end
    return table.concat(parts, '\n')
  end
end
