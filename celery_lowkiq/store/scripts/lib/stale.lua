-- Needs policy, time and KEYS meta, peaks?. The peak of an id, '<score> <s>': the highest score that was processed with
-- success, and when.
local SWEPT = 16
local peak_of, reach, sweep_peaks
if asked.stale then
  redis.call('HLEN', peaks)

  -- Payloads of the id with a smaller score are stale; nil when there is no peak.
  function peak_of(id)
    local score, at = string.match(redis.call('HGET', peaks, id) or '', '^(%S+) (%d+)$')
    if score and tonumber(at) + asked.stale > now_us() / 1000000 then
      return tonumber(score)
    end
  end

  function reach(id, score)
    local known = peak_of(id)
    if not known or known <= tonumber(score) then
      redis.call('HSET', peaks, id, score .. ' ' .. math.floor(now_us() / 1000000))
    end
  end

  -- Forgets a few peaks that are too old; the next time goes on where this one ended. All of a shard that processes
  -- nothing any more vanish by themselves.
  function sweep_peaks()
    local oldest = now_us() / 1000000 - asked.stale
    local swept = redis.call('HSCAN', peaks, redis.call('HGET', meta, 'swept') or '0', 'COUNT', SWEPT)
    redis.call('HSET', meta, 'swept', swept[1])
    for i = 1, #swept[2], 2 do
      if (tonumber(string.match(swept[2][i + 1], '%d+$')) or 0) < oldest then
        redis.call('HDEL', peaks, swept[2][i])
      end
    end
    redis.call('EXPIRE', peaks, math.ceil(asked.stale))
  end
end
