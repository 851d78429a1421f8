-- Policy drop_stale: the highest score that was processed with success for an id, and when: '<score> <s>'.
--
-- KEYS: meta done_scores
-- USES: policy time
local SWEPT = 16
local done_score_of, record_done_score, sweep_done_scores
if options.drop_stale then
  redis.call('HLEN', done_scores)

  -- Payloads of the id with a smaller score are stale; nil when no score is stored.
  function done_score_of(id)
    local score, at = string.match(redis.call('HGET', done_scores, id) or '', '^(%S+) (%d+)$')
    if score and tonumber(at) + options.drop_stale > now_us() / 1000000 then
      return tonumber(score)
    end
  end

  function record_done_score(id, score)
    local known = done_score_of(id)
    if not known or known <= tonumber(score) then
      redis.call('HSET', done_scores, id, score .. ' ' .. math.floor(now_us() / 1000000))
    end
  end

  -- Deletes a few scores that are too old; the next call continues where this one ended. All of a shard that processes
  -- nothing any more vanish by themselves.
  function sweep_done_scores()
    local oldest = now_us() / 1000000 - options.drop_stale
    local swept = redis.call('HSCAN', done_scores, redis.call('HGET', meta, 'done_scores_cursor') or '0', 'COUNT', SWEPT)
    redis.call('HSET', meta, 'done_scores_cursor', swept[1])
    for i = 1, #swept[2], 2 do
      if (tonumber(string.match(swept[2][i + 1], '%d+$')) or 0) < oldest then
        redis.call('HDEL', done_scores, swept[2][i])
      end
    end
    redis.call('EXPIRE', done_scores, math.ceil(options.drop_stale))
  end
end
