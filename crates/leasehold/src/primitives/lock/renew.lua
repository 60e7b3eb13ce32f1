-- Makes this hold last for a lease from now at least.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long it lasts from now
-- Returns   1  renewed
--           0  not ours any more; nothing was changed

local function renew(lock, hold, lease_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- An earlier request can arrive behind a later one that asked for more, and the
  -- holder counts on that: never shorter.
  if redis.call('PTTL', lock) < tonumber(lease_ms) then
    redis.call('PEXPIRE', lock, lease_ms)
  end
  return 1
end
