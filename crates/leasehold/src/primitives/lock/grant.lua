-- Grants a free lock to this hold, with a lease. Returns false, or an error text.
local function grant(lock, hold, lease_ms)
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
