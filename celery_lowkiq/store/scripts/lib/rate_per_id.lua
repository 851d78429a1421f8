-- Policy rate_per_id: a run costs a token of its id's bucket.
--
-- KEYS: buckets
-- USES: policy time waiting_index
-- A bucket is kept as the time when it is full again (us). A bucket that is missing, or whose time has passed, is full.
local take_token, return_token, defer_without_token, sweep_buckets
-- A claim looks at so many jobs of ids without a token beside those that it takes.
local SKIPPED = 100
if options.rate then
  local SWEPT_BUCKETS = 16
  local interval = math.min(1 / options.rate, LONGEST) * 1000000
  local ahead = (options.burst - 1) * interval
  redis.call('ZCARD', buckets)

  local function text(us)
    return string.format('%.0f', us)
  end

  local function full_at(id)
    return tonumber(redis.call('ZSCORE', buckets, id) or '')
  end

  function take_token(id, now)
    redis.call('ZADD', buckets, text(math.max(now, full_at(id) or 0) + interval), id)
  end

  -- A run that was paid for did not take place.
  function return_token(id)
    if full_at(id) then
      redis.call('ZINCRBY', buckets, text(-interval), id)
    end
  end

  -- Whether the id has no token: then its job is due when there is one.
  function defer_without_token(id, now)
    local full = full_at(id)
    if not full or full - ahead <= now then
      return false
    end
    index_put(id, seconds(math.ceil(full - ahead)), priority_of(id))
    return true
  end

  -- Forgets a few buckets that are full; all of them, when nothing runs until they are.
  function sweep_buckets(now)
    local full = redis.call('ZRANGEBYSCORE', buckets, '-inf', text(now), 'LIMIT', 0, SWEPT_BUCKETS)
    if #full > 0 then
      redis.call('ZREM', buckets, unpack(full))
    end
    redis.call('PEXPIRE', buckets, text(math.min(LONGEST, options.burst / options.rate) * 1000 + 1000))
  end
end
