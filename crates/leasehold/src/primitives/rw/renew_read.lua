-- Makes this read hold last for a lease from now at least, and the lock with it.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--           `uuid:n:write`
-- timeout   this hold's own key, whose expiry is the end of its lease
-- hold      this hold's field
-- lease_ms  how long it lasts from now
-- most_ms   it is made shorter if it has more than that; 0 for never
-- Returns   n  renewed, and n ms are left now
--           0  not ours any more; nothing was changed

local function renew_read(lock, timeout, hold, lease_ms, most_ms)
  local ttl, most = redis.call('PTTL', timeout), tonumber(most_ms)
  -- Without its own key the hold is over, for us and for Redisson, although its field is there.
  if ttl == -2 or redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- An earlier request can arrive behind a later one that asked for more, and the
  -- holder counts on that: not shorter by itself.
  if ttl < tonumber(lease_ms) or (most > 0 and ttl > most) then
    ttl = tonumber(lease_ms)
  end
  -- Written in any case: whoever waits for replicas waits for what this has written.
  redis.call('PEXPIRE', timeout, ttl)
  -- The lock is never shorter than a hold. It may be longer for the sake of another one, so
  -- only a hold that is alone makes it shorter. (Redisson sets it to its own timeout.)
  local whole = redis.call('PTTL', lock)
  local alone = redis.call('HLEN', lock) == 2
  if (whole >= 0 and whole < ttl) or (alone and (whole == -1 or (most > 0 and whole > most))) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return ttl
end
