-- Replaces a write hold by a read hold, with no other hold in between, and wakes all waiters.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- timeout   the read hold's own key, whose expiry is the end of its lease
-- hold      the write hold's field
-- read      the read hold's field
-- lease_ms  how long the read hold lasts without renewal
-- channel   where the waiters listen
-- Returns   1  done; a repeated request changes nothing
--           0  the write hold no longer exists; nothing was changed

local function downgrade(lock, timeout, hold, read, lease_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    local ttl = redis.call('HEXISTS', lock, read) == 1 and redis.call('PTTL', timeout) or 0
    -- Written even if nothing changes: a client that waits for replicas waits for this write.
    return ttl > 0 and redis.call('PEXPIRE', timeout, ttl) or 0
  end
  -- The first command must be one that works when the server is out of memory. The server then runs
  -- the others too. The lock lasts long enough for both holds until `trim_expiry` sets its end.
  local ttl = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, math.max(ttl, tonumber(lease_ms)))
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', 'read', read, '1')
  redis.call('HDEL', lock, hold)
  trim_expiry(lock)
  -- Redisson publishes nothing at a downgrade, and its own readers then wait for the expiry.
  wake_all(channel)
  return 1
end
