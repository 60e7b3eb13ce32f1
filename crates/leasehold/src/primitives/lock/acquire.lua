-- Grants the lock to this hold if it is free, with a lease.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long the hold lasts without renewal
-- Returns   nil  granted; a repeated request changes nothing
--           n    another hold has the lock for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock

local function acquire(lock, hold, lease_ms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES wrong_kind]]
      return wrong_kind('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- The first copy of this request set the lease, and a renewal may have lengthened it since.
    return false
  end
  -- A copy of `grant.lua`, without a function call, because a plain acquire must be cheap. The
  -- value is always 1: the client counts re-entries, and Redisson has no API that shows the value.
  redis.call('HSET', lock, hold, '1')
  local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
  if type(expiry) == 'table' then
    -- A lock without expiry would outlive its holder. The lock was free and has one field, so
    -- either command removes it; an ACL may deny one of them.
    local gone = redis.pcall('HDEL', lock, hold)
    if type(gone) == 'table' then redis.call('DEL', lock) end
    return expiry.err
  end
  return false
end
