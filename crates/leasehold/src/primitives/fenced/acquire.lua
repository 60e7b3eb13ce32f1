-- Grants the lock to this hold if it is free, with a lease and a fencing token.
--
-- lock        hash: one field per hold, `uuid:n`
-- counter     text: the last token
-- hold        this hold's field
-- lease_ms    how long the hold lasts without renewal
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   { 1, token }  granted; a repeated request changes nothing
--           n    another hold has the lock for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock, or not a counter

local function acquire(lock, counter, hold, lease_ms, counter_ms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES wrong_kind]]
      return wrong_kind('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- While this hold exists, no other hold draws a token.
    return { 1, tonumber(string.match(redis.call('GET', counter) or '', '^%d+$')) or 0 }
  end
  local token, wrong = next_token(counter)
  if not token then
    return wrong
  end
  -- The token first: an unused token does no harm.
  note(counter, token, counter_ms)
  return grant(lock, hold, lease_ms) or { 1, token }
end
