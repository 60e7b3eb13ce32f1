-- The value of a hold's field once `keep_for_span` has fixed the end of the hold. As a number it is
-- still 1. As a text it differs from 1, so a renewal that arrives late does not lengthen the hold.
local KEPT = '01'

-- Returns whether this hold has the lock and can be renewed.
local function can_be_renewed(lock, hold)
  local count = redis.call('HGET', lock, hold)
  return count and count ~= KEPT
end

-- Makes this hold end in `span_ms`. Returns whether that is sooner than before. Then the waiters
-- must be notified, because they sleep until the end that they last learned, or for ever.
local function keep_for_span(span_ms, lock, hold)
  local ttl = redis.call('PTTL', lock)
  -- Before `HSET`, because it works when the server is out of memory. After the first write of a
  -- script, the server allows the other writes, too.
  redis.call('PEXPIRE', lock, span_ms)
  redis.call('HSET', lock, hold, KEPT)
  return ttl < 0 or ttl > tonumber(span_ms)
end
