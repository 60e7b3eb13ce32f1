-- Takes the lock for this hold if it is free, with a lease and a fencing token.
--
-- lock        hash: one field per hold, `uuid:n`
-- counter     text: the last token
-- hold        this hold's field
-- lease_ms    how long it lasts without renewal
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   { 1, token }  granted; a request that comes a second time changes nothing
--           n    held by somebody else for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock, or not a counter

local function acquire(lock, counter, hold, lease_ms, counter_ms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES other_than]]
      return other_than('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- While this hold is there, nobody else takes a token.
    return { 1, tonumber(string.match(redis.call('GET', counter) or '', '^%d+$')) or 0 }
  end
  local token, wrong = next_token(counter)
  if not token then
    return wrong
  end
  -- The token first: one that nobody gets does no harm.
  note(counter, token, counter_ms)
  return grant(lock, hold, lease_ms) or { 1, token }
end
