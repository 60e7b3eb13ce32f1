-- The value of a hold's field after the hold was left to a span. As a number it is still 1. As a
-- text it differs, so that a renewal that arrives late does not lengthen the hold.
local KEPT = '01'

-- Returns whether this hold has the lock and can be renewed.
local function can_be_renewed(lock, hold)
  local count = redis.call('HGET', lock, hold)
  return count and count ~= KEPT
end

-- Leaves this hold to a span. Returns whether it ends sooner than before: the waiters sleep until
-- the end that they learned before, or for ever.
local function keep_for_span(span_ms, lock, hold)
  local ttl = redis.call('PTTL', lock)
  -- Before `HSET`, because it works when the server is out of memory. After the first write of a
  -- script, the server allows the other writes, too.
  redis.call('PEXPIRE', lock, span_ms)
  redis.call('HSET', lock, hold, KEPT)
  return ttl < 0 or ttl > tonumber(span_ms)
end
