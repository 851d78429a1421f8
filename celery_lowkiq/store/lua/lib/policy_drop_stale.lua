-- Policy drop_stale: drops payloads with a smaller score than one that was processed for their id.
--
-- KEYS: meta done_scores
-- USES: policies policy_keep time delete_old_fields
-- `done_scores` has the highest score that was processed with success, and when: '<score> <s>'.
if options.drop_stale then
  redis.call('HLEN', done_scores)

  function hooks.done_score(id)
    local score, at = string.match(redis.call('HGET', done_scores, id) or '', '^(%S+) (%d+)$')
    if score and tonumber(at) + options.drop_stale > now_us() / 1000000 then
      return tonumber(score)
    end
  end

  -- A claim drops a payload that has call records, so that its calls get a result, unless it would need the place of
  -- another job.
  add_hook('drops_call', function(id, score, flag, waits)
    local done_score = (flag == '' or options.max_length and not waits) and hooks.done_score(id)
    return done_score and tonumber(score) < done_score
  end)

  local unwanted = hooks.unwanted
  function hooks.unwanted(id, items)
    local count, done_score = unwanted and unwanted(id, items) or 0, hooks.done_score(id)
    while done_score and items[count + 1] and items[count + 1][3] < done_score do
      count = count + 1
    end
    return count
  end

  function hooks.done(id, score)
    local done_score = hooks.done_score(id)
    if not done_score or done_score <= tonumber(score) then
      redis.call('HSET', done_scores, id, score .. ' ' .. math.floor(now_us() / 1000000))
    end
  end

  -- All scores expire when the shard processes nothing for `drop_stale` s.
  function hooks.after_settle()
    delete_old_fields(done_scores, 'done_scores_cursor', now_us() / 1000000 - options.drop_stale)
    redis.call('EXPIRE', done_scores, math.ceil(options.drop_stale))
  end
end
