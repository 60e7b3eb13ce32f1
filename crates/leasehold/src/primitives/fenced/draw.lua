-- Gives a fencing token to this hold, which has kept all other clients out until now.
--
-- lock        hash: one field per hold, `uuid:n`, or `uuid:n:write` for a write hold
-- counter     text: the last token
-- hold        this hold's field
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   n    the token; a repeated request draws another one, and leaves a gap
--           0    this hold no longer has the lock; nothing was changed
--           text WRONGKIND: not a counter

local function draw(lock, counter, hold, counter_ms)
  -- The next holder may have drawn a token already, and a token drawn now would be greater.
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local token, wrong = next_token(counter)
  if not token then
    return wrong
  end
  note(counter, token, counter_ms)
  return token
end
