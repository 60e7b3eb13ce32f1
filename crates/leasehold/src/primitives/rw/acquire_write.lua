-- Takes the lock for this hold alone if it is free, with a lease; else leaves a mark
-- that a writer waits.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--           `uuid:n:write`
-- writers   sorted set: our waiting writers, each with the time its mark ends
-- hold      this hold's field
-- lease_ms  how long it lasts without renewal
-- waiter    who waits, in `writers`
-- mark_ms   how long its mark keeps our new readers out; 0 for no mark
-- Returns   nil  granted; a request that comes a second time changes nothing
--           n    held by others for n ms more; -1 without expiry
--           text WRONGKIND: not a read-write lock

local function acquire_write(lock, writers, hold, lease_ms, waiter, mark_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local other = foreign(lock, mode)
  if other then
    return other
  end
  if not mode then
    redis.call('HSET', lock, 'mode', 'write', hold, '1')
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      local gone = redis.pcall('DEL', lock)
      if type(gone) == 'table' then redis.call('HDEL', lock, 'mode', hold) end
      return expiry.err
    end
    if mark_ms ~= '0' then redis.pcall('ZREM', writers, waiter) end
    return false
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    -- The first one set the lease, and it may have been made longer since.
    return false
  end
  if mark_ms ~= '0' then
    -- Only a courtesy: it fails when the server is out of memory.
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    -- Those of killed writers go, or the living would keep theirs alive.
    redis.pcall('ZREMRANGEBYSCORE', writers, '-inf', now)
    local noted = redis.pcall('ZADD', writers, now + mark_ms, waiter)
    if type(noted) == 'number' then
      local expiry = redis.pcall('PEXPIRE', writers, mark_ms)
      if type(expiry) == 'table' then redis.pcall('DEL', writers) end
    end
  end
  return redis.call('PTTL', lock)
end
