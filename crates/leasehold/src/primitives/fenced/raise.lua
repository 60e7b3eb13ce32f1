-- Makes the tokens of whoever holds this lock after this hold greater than `token`,
-- which may come from the counter of another lock.
--
-- lock        hash: one field per hold, `uuid:n`, of a write hold `uuid:n:write`
-- counter     text: the last token
-- hold        this hold's field
-- token       what the counter is raised to, if it is less
-- counter_ms  how long the counter outlives its last use; 0 for ever
-- Returns   1    it is that now, or more
--           0    not ours any more; nothing was changed
--           text WRONGKIND: not a counter

local function raise(lock, counter, hold, token, counter_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- Of several locks each has drawn; the greatest is the token of all, and each is raised to it.
  local last, wrong = last_given(counter)
  if not last then
    return wrong
  end
  if last < tonumber(token) then
    note(counter, token, counter_ms)
  else
    -- Written in any case: whoever waits for replicas waits for what this has written.
    redis.pcall('INCRBY', counter, 0)
  end
  return 1
end
