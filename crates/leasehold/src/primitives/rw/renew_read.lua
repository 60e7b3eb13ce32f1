-- Renews this read hold and the lock: both last for at least `lease_ms` from now.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- timeout   this hold's own key, whose expiry is the end of its lease
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock; nothing was changed

local function renew_read(lock, timeout, hold, lease_ms, most_ms)
  local ttl, most = redis.call('PTTL', timeout), tonumber(most_ms)
  -- Without its own key the hold has ended, here and in Redisson, although its field still exists.
  if ttl == -2 or redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- Otherwise never shortened: an earlier request can arrive after a later one that asked for more,
  -- and the holder relies on the longer lease.
  if ttl < tonumber(lease_ms) or (most > 0 and ttl > most) then
    ttl = tonumber(lease_ms)
  end
  -- Written even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', timeout, ttl)
  -- The lock must not expire before any of its holds. Another hold may need a longer expiry, so
  -- only a hold that is alone shortens it. (Redisson sets it to the renewed hold's timeout.)
  local lock_ttl = redis.call('PTTL', lock)
  local alone = redis.call('HLEN', lock) == 2
  if (lock_ttl >= 0 and lock_ttl < ttl) or (alone and (lock_ttl == -1 or (most > 0 and lock_ttl > most))) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return ttl
end
