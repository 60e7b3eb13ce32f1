-- When the latch was open last, 0 when that is not known. An ACL may deny it.
local function last_opened(opened)
  local last = redis.pcall('GET', opened)
  return type(last) == 'string' and tonumber(last) or 0
end

-- Notes that the latch is open, or was until now: whoever waited for that must not miss it, although
-- the message was lost and the latch is set again. Later than whatever was told before, also
-- when the clock was set back or two things happen within a millisecond.
local function note_opened(opened)
  -- An ACL may deny each. A latch must open all the same, and the message does most of it.
  local time = redis.pcall('TIME')
  local now = time.err and 0 or time[1] * 1000 + math.floor(time[2] / 1000)
  redis.pcall('SET', opened, math.max(now, last_opened(opened)) + 1, 'PX', 3600000)
end
