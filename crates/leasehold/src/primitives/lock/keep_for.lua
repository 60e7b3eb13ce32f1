-- Sets the lease of this hold to `span_ms` from now, even if that is shorter.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- span_ms  how long the hold lasts from now
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  set
--          0  this hold no longer has the lock; nothing was changed

local function keep_for(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local ttl = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, span_ms)
  -- The waiters sleep until the end that they learned before, or for ever. They must ask again to
  -- learn the new end. No client is called by its number, so all of them ask. An ACL may deny the
  -- channel.
  if ttl < 0 or ttl > tonumber(span_ms) then
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end
