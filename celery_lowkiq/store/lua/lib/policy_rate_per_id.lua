-- Policy rate_per_id: each run takes a token from the bucket of its id.
--
-- KEYS: buckets
-- USES: policies time waiting_index
-- `buckets` has the time at which a bucket is full again (us). A bucket without entry, or with a past time, is full.
if options.rate then
  local REMOVED = 16
  local interval = math.min(1 / options.rate, LONGEST) * 1000000
  local ahead = (options.burst - 1) * interval
  redis.call('ZCARD', buckets)

  local function text(us)
    return string.format('%.0f', us)
  end

  local function full_at(id)
    return tonumber(redis.call('ZSCORE', buckets, id) or '')
  end

  -- Without a token, the job is due when its bucket has one.
  function hooks.defer(id, now)
    local full = full_at(id)
    if not full or full - ahead <= now then
      return false
    end
    index_put(id, seconds(math.ceil(full - ahead)), priority_of(id))
    return true
  end

  add_hook('claimed', function(ids, now)
    for _, id in ipairs(ids) do
      redis.call('ZADD', buckets, text(math.max(now, full_at(id) or 0) + interval), id)
    end
  end)

  -- Returns the token.
  function hooks.not_run(id)
    if full_at(id) then
      redis.call('ZINCRBY', buckets, text(-interval), id)
    end
  end

  -- Removes some full buckets. All of them expire when no job runs until they are full.
  function hooks.after_claim(now)
    local full = redis.call('ZRANGEBYSCORE', buckets, '-inf', text(now), 'LIMIT', 0, REMOVED)
    if #full > 0 then
      redis.call('ZREM', buckets, unpack(full))
    end
    redis.call('PEXPIRE', buckets, text(math.min(LONGEST, options.burst / options.rate) * 1000 + 1000))
  end
end
