-- Takes the lock for this hold if it is free, with a lease.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long it lasts without renewal
-- Returns   nil  granted; a request that comes a second time changes nothing
--           n    held by somebody else for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock

local function acquire(lock, hold, lease_ms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES other_than]]
      return other_than('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- The first one set the lease, and it may have been made longer since.
    return false
  end
  -- As `grant.lua` does it, but with no function for it: a plain acquire is to cost little.
  -- Always 1: re-entries are counted in the client, and no call of Redisson's shows that.
  redis.call('HSET', lock, hold, '1')
  local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
  if type(expiry) == 'table' then
    -- A lock without expiry would outlive its holder. It was free and has one field,
    -- so either command takes it away; an ACL may deny one of them.
    local gone = redis.pcall('HDEL', lock, hold)
    if type(gone) == 'table' then redis.call('DEL', lock) end
    return expiry.err
  end
  return false
end
