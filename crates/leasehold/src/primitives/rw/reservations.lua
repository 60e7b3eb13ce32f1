-- Reservations of waiting readers or writers, each with the time at which it ends. A reservation is
-- only a courtesy: writing one fails when the server is out of memory, and a key of another type
-- keeps no client out.

-- Makes or extends the reservation of `waiter`, to `reserve_ms` from now. Does nothing if that is
-- 0.
local function reserve(reservations, waiter, reserve_ms)
  if reserve_ms == '0' then
    return
  end
  local now = now_ms()
  -- Removes the reservations of killed waiters. Otherwise they would live on, because each new
  -- reservation extends the life of the key.
  redis.pcall('ZREMRANGEBYSCORE', reservations, '-inf', now)
  local noted = redis.pcall('ZADD', reservations, now + reserve_ms, waiter)
  if type(noted) == 'number' then
    local expiry = redis.pcall('PEXPIRE', reservations, reserve_ms)
    -- A key without an expiry would remain for ever.
    if type(expiry) == 'table' then redis.pcall('DEL', reservations) end
  end
end

-- Returns for how many ms the reservations keep other clients out.
local function reserved_for(reservations)
  local last = redis.pcall('ZREVRANGE', reservations, 0, 0, 'WITHSCORES')
  if last.err or not last[2] then
    return 0
  end
  return tonumber(last[2]) - now_ms()
end
