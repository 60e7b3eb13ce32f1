-- Lets this hold read unless somebody else writes, with a lease.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--           `uuid:n:write`
-- timeout   this hold's own key, whose expiry is the end of its lease
-- writers   sorted set: our waiting writers, each with the time its mark ends
-- hold      this hold's field
-- within    the field of the write hold that its owner has, or nothing
-- lease_ms  how long it lasts without renewal
-- polite    1: it stays out while one of our writers waits
-- Returns   nil  granted; a request that comes a second time changes nothing
--           n    kept out for n ms more; -1 without expiry
--           text WRONGKIND: not a read-write lock

local function acquire_read(lock, timeout, writers, hold, within, lease_ms, polite)
  local mode = redis.call('HGET', lock, 'mode')
  local other = foreign(lock, mode)
  if other then
    return other
  end
  if mode and redis.call('HEXISTS', lock, hold) == 1 and redis.call('EXISTS', timeout) == 1 then
    -- The first one set the lease, and it may have been made longer since.
    return false
  end
  if mode == 'write' then
    if within == '' or redis.call('HEXISTS', lock, within) == 0 then
      return redis.call('PTTL', lock)
    end
  elseif polite == '1' then
    -- Only a courtesy: whatever else stands there keeps nobody out.
    local last = redis.pcall('ZREVRANGE', writers, 0, 0, 'WITHSCORES')
    if not last.err and last[2] then
      local time = redis.call('TIME')
      local rest = tonumber(last[2]) - (time[1] * 1000 + math.floor(time[2] / 1000))
      if rest > 0 then
        return rest
      end
    end
  end
  -- Its own key first: the hold would be none without it.
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', mode or 'read', hold, '1')
  local ttl = redis.call('PTTL', lock)
  -- Never shorter: others count on it. A lock whose expiry was taken away keeps it so.
  if not mode or (ttl >= 0 and ttl < tonumber(lease_ms)) then
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      redis.pcall('DEL', timeout)
      local gone = mode and redis.pcall('HDEL', lock, hold) or redis.pcall('DEL', lock)
      if type(gone) == 'table' then
        redis.call('HDEL', lock, 'mode', hold)
      end
      return expiry.err
    end
  end
  return false
end
