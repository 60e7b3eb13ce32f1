-- Reads when the latch was last open, 0 if that is not known. An ACL may deny the read.
local function last_opened(opened)
  local last = redis.pcall('GET', opened)
  return type(last) == 'string' and tonumber(last) or 0
end

-- Notes that the latch is open, or was until now. A waiter must not miss an opening, even if the
-- message was lost and the latch is set again. The time is later than each one noted before, even
-- if the clock was set back or two openings happen within a millisecond.
local function note_opened(opened)
  -- An ACL may deny either command. The latch must open anyway, and usually the message is enough.
  local time = redis.pcall('TIME')
  local now = time.err and 0 or time[1] * 1000 + math.floor(time[2] / 1000)
  redis.pcall('SET', opened, math.max(now, last_opened(opened)) + 1, 'PX', 3600000)
end
