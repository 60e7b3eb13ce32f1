-- Makes the tokens of all later holders of this lock greater than `token`, which may be from the
-- counter of another lock.
--
-- lock        hash: one field per hold, `uuid:n`, or `uuid:n:write` for a write hold
-- counter     text: the last token
-- hold        this hold's field
-- token       the value to which the counter is raised, if it is less
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   1    the counter is at least `token` now
--           0    this hold no longer has the lock; nothing was changed
--           text WRONGKIND: not a counter

local function raise(lock, counter, hold, token, counter_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- If several locks act as one, each has drawn a token. The greatest is the token of all, and each
  -- counter is raised to it.
  local last, wrong = last_given(counter)
  if not last then
    return wrong
  end
  if last < tonumber(token) then
    note(counter, token, counter_ms)
  else
    -- Written even if nothing changes: a client that waits for replicas waits for this write.
    redis.pcall('INCRBY', counter, 0)
  end
  return 1
end
