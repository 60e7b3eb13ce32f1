-- Marks of those who wait, each with the time it ends. Only a courtesy: noting one fails
-- when the server is out of memory, and whatever else stands there keeps nobody out.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Notes that `waiter` waits, for `mark_ms`; 0 for no mark.
local function mark(marks, waiter, mark_ms)
  if mark_ms == '0' then
    return
  end
  local now = now_ms()
  -- Those of killed waiters go, or the living would keep theirs alive.
  redis.pcall('ZREMRANGEBYSCORE', marks, '-inf', now)
  local noted = redis.pcall('ZADD', marks, now + mark_ms, waiter)
  if type(noted) == 'number' then
    local expiry = redis.pcall('PEXPIRE', marks, mark_ms)
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
