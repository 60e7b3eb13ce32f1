-- What a hold's field has once the hold is left to a span. Whoever reads the number finds the same one.
-- A renewal finds another text: one that arrives late must not lengthen the hold.
local KEPT = '01'

-- Whether this hold is there and can be renewed.
local function can_be_renewed(lock, hold)
  local count = redis.call('HGET', lock, hold)
  return count and count ~= KEPT
end

-- Leaves this hold to a span. Gives whether it ends sooner than before: the waiters sleep until the
-- end that they were told before, or for ever.
local function leave_to(span_ms, lock, hold)
  local ttl = redis.call('PTTL', lock)
  -- First: it works when the server is out of memory, and what follows it may be written then, too.
  redis.call('PEXPIRE', lock, span_ms)
  redis.call('HSET', lock, hold, KEPT)
  return ttl < 0 or ttl > tonumber(span_ms)
end
