-- Renews this write hold: it lasts for at least `lease_ms` from now.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock, or its end is fixed; nothing was changed

local function renew_write(lock, hold, lease_ms, most_ms)
  if not can_be_renewed(lock, hold) then
    return 0
  end
  local ttl, most = redis.call('PTTL', lock), tonumber(most_ms)
  -- Not shortened if the owner has a read hold inside this one, which may last longer. If there are
  -- two fields, they are `mode` and this hold.
  local too_long = most > 0 and ttl > most and redis.call('HLEN', lock) == 2
  if ttl < tonumber(lease_ms) or too_long then
    ttl = tonumber(lease_ms)
  end
  -- Written even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', lock, ttl)
  return ttl
end
