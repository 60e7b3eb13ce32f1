-- Makes the lease of this hold run from now.
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
  redis.call('PEXPIRE', lock, lease_ms)
  return 1
end
