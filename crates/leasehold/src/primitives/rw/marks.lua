-- Marks of waiting readers or writers, each with the time at which it ends. Only a courtesy:
-- noting one fails when the server is out of memory, and a key of another kind keeps nobody out.

-- Notes that `waiter` waits, for `mark_ms`; 0 for no mark.
local function mark(marks, waiter, mark_ms)
  if mark_ms == '0' then
    return
  end
  local now = now_ms()
  -- The marks of killed waiters go: each new mark lengthens the life of the key, and with it
  -- theirs.
  redis.pcall('ZREMRANGEBYSCORE', marks, '-inf', now)
  local noted = redis.pcall('ZADD', marks, now + mark_ms, waiter)
  if type(noted) == 'number' then
    local expiry = redis.pcall('PEXPIRE', marks, mark_ms)
    -- A key without an end would stay for ever.
    if type(expiry) == 'table' then redis.pcall('DEL', marks) end
  end
end

-- For how many ms somebody's mark keeps others out.
local function marked_for(marks)
  local last = redis.pcall('ZREVRANGE', marks, 0, 0, 'WITHSCORES')
  if last.err or not last[2] then
    return 0
  end
  return tonumber(last[2]) - now_ms()
end
