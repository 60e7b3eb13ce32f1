-- When the latch was open last, 0 when that is not known. An ACL may deny it.
local function last_opened(opened)
  local last = redis.pcall('GET', opened)
  return type(last) == 'string' and tonumber(last) or 0
end

-- Notes that the latch is open, or was until now: a waiter must not miss that, even if the
-- message was lost and the latch is set again. The time is later than each that was noted
-- before, even if the clock was set back or two things happen within a millisecond.
local function note_opened(opened)
  -- An ACL may deny either. A latch must open nevertheless, and mostly the message is enough.
  local time = redis.pcall('TIME')
  local now = time.err and 0 or time[1] * 1000 + math.floor(time[2] / 1000)
  redis.pcall('SET', opened, math.max(now, last_opened(opened)) + 1, 'PX', 3600000)
end
