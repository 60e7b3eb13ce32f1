-- A fenced lock.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [token] -----------------------------------------------------------------------------------------

local function not_a_counter(counter)
  return 'WRONGKIND a lock whose fencing counter (' .. counter .. ') is not a number below 2^53'
end
-- Returns the last token that was given, 0 if there was none; nil and an error message if `counter`
-- is not a counter.
local function last_given(counter)
  local last = redis.pcall('GET', counter) or '0'
  if type(last) == 'table' then
    if not string.find(last.err, 'WRONGTYPE', 1, true) then return nil, last.err end
  elseif string.match(last, '^%d+$') then
    return tonumber(last)
  end
  return nil, not_a_counter(counter)
end
-- Returns the next token: greater than the last one, and at least the server's time in
-- microseconds, so that tokens keep rising when the counter was lost.
local function next_token(counter)
  local last, wrong = last_given(counter)
  if not last then return nil, wrong end
  -- Lua's numbers are not exact above 2^53.
  if last >= 9007199254740991 then return nil, not_a_counter(counter) end
  -- `call.lua` may have read the time already.
  time = time or redis.call('TIME')
  return math.max(last + 1, time[1] * 1000000 + time[2])
end
-- Stores the token as digits: Java could not continue from a number with an exponent.
local function note(counter, token, counter_ms)
  redis.call('SET', counter, string.format('%.0f', token))
  if counter_ms ~= '0' then
    redis.call('PEXPIRE', counter, counter_ms)
  end
end

-- [acquire] ---------------------------------------------------------------------------------------

-- Grants the lock to this hold if it is free, with a lease and a fencing token.
--
-- lock        hash: one field per hold, `uuid:n`
-- counter     text: the last token
-- hold        this hold's field
-- lease_ms    how long the hold lasts without renewal
-- counter_ms  how long the counter outlives its last use; 0 forever
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
  -- Store the token first: an unused token does no harm.
  note(counter, token, counter_ms)
  return grant(lock, hold, lease_ms) or { 1, token }
end

-- [draw] ------------------------------------------------------------------------------------------

-- Gives a fencing token to this hold, which has kept all other clients out until now.
--
-- lock        hash: one field per hold, `uuid:n`, or `uuid:n:write` for a write hold
-- counter     text: the last token
-- hold        this hold's field
-- counter_ms  how long the counter outlives its last use; 0 forever
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

-- [raise] -----------------------------------------------------------------------------------------

-- Makes the tokens of all later holders of this lock greater than `token`, which may be from the
-- counter of another lock.
--
-- lock        hash: one field per hold, `uuid:n`, or `uuid:n:write` for a write hold
-- counter     text: the last token
-- hold        this hold's field
-- token       the value to which the counter is raised, if the counter is less
-- counter_ms  how long the counter outlives its last use; 0 forever
-- Returns   1    the counter is at least `token` now
--           0    this hold no longer has the lock; nothing was changed
--           text WRONGKIND: not a counter

local function raise(lock, counter, hold, token, counter_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- If several locks act as one, a token was drawn for each of them. The greatest is the token of
  -- all, and each counter is raised to it.
  local last, wrong = last_given(counter)
  if not last then
    return wrong
  end
  if last < tonumber(token) then
    note(counter, token, counter_ms)
  else
    -- Write even if nothing changes: a client that waits for replicas waits for this write.
    redis.pcall('INCRBY', counter, 0)
  end
  return 1
end

-- [last_token] ------------------------------------------------------------------------------------

-- Returns the token that was given last.
--
-- counter  text: the last token
-- Returns  n    the token; 0 when none was given, or the counter no longer exists
--          text WRONGKIND: not a counter

local function last_token(counter)
  local last, wrong = last_given(counter)
  return last or wrong
end
