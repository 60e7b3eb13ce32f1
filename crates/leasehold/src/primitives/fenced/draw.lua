-- Gives this hold, which has kept everybody else out until now, a fencing token.
--
-- lock        hash: one field per hold, `uuid:n`, of a write hold `uuid:n:write`
-- counter     text: the last token
-- hold        this hold's field
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   n    the token; a request that comes a second time draws another one, and
--                leaves a gap
--           0    not ours any more; nothing was changed
--           text WRONGKIND: not a counter

local function draw(lock, counter, hold, counter_ms)
  -- The next holder may have drawn already, and this token would be above its.
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
