-- Renews this hold: it lasts for at least `lease_ms` from now.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock, or its end is fixed; nothing was changed

local function renew(lock, hold, lease_ms, most_ms)
  if not can_be_renewed(lock, hold) then
    return 0
  end
  local ttl, most = redis.call('PTTL', lock), tonumber(most_ms)
  -- Otherwise never shortened: an earlier request can arrive after a later one that asked for more,
  -- and the holder relies on the longer lease.
  if ttl < tonumber(lease_ms) or (most > 0 and ttl > most) then
    ttl = tonumber(lease_ms)
  end
  -- Written even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', lock, ttl)
  return ttl
end
