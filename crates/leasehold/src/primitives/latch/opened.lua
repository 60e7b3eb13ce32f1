-- Now in ms, and when the latch was opened last: later than whatever was told before, also
-- when the clock was set back or two things happen within a millisecond.
local function times(opened)
  -- An ACL may deny either. A latch must open all the same, and the message does most of it.
  local time, last = redis.pcall('TIME'), redis.pcall('GET', opened)
  local now = time.err and 0 or time[1] * 1000 + math.floor(time[2] / 1000)
  return now, type(last) == 'string' and tonumber(last) or 0
end

-- Notes that the latch was opened now: whoever waited for that must not miss it, although
-- the message was lost and the latch is set again.
local function note_opened(opened)
  local now, last = times(opened)
  redis.pcall('SET', opened, math.max(now, last) + 1, 'PX', 3600000)
end
