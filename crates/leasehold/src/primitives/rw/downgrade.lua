-- Turns a write hold into a read hold, with nobody in between, and wakes all waiters.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--           `uuid:n:write`
-- timeout   the read hold's own key, whose expiry is the end of its lease
-- hold      the write hold's field
-- read      the read hold's field
-- lease_ms  how long the read hold lasts without renewal
-- channel   where the waiters listen
-- Returns   1  done; a request that comes a second time changes nothing
--           0  the write hold is not there any more; nothing was changed

local function downgrade(lock, timeout, hold, read, lease_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    local ttl = redis.call('HEXISTS', lock, read) == 1 and redis.call('PTTL', timeout) or 0
    -- Written in any case: whoever waits for replicas waits for what this has written.
    return ttl > 0 and redis.call('PEXPIRE', timeout, ttl) or 0
  end
  -- A command that works when the server is out of memory comes first, and the others may
  -- follow it. The lock lasts long enough for both holds until `trim_expiry` sets its end.
  local ttl = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, math.max(ttl, tonumber(lease_ms)))
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', 'read', read, '1')
  redis.call('HDEL', lock, hold)
  trim_expiry(lock)
  -- Redisson says nothing at a downgrade, and its own readers then wait for the expiry.
  wake_all(channel)
  return 1
end
