-- Policy hold: a death holds its id, behind which at most `hold` payloads may wait.
--
-- KEYS: jobs spill_order
-- USES: policies holds payload_set_read
if options.hold then
  -- Keys of another type are found before the first write.
  redis.call('ZCARD', paused)
  redis.call('ZCARD', due_paused)

  hooks.died = begin_hold

  add_hook('refusal', function(last_job)
    local new = {}
    for i = rest, any_paused and last_job or 0, 4 do
      new[ARGV[i]] = (new[ARGV[i]] or 0) + 1
    end
    for id, count in pairs(new) do
      local length = pause_of(id) and set_size({records = jobs, spill_order = spill_order}, id)
      if length and length + count > options.hold then
        return redis.error_reply('FULL ' .. length .. ' ' .. options.hold .. ' ' .. id)
      end
    end
  end)
end
