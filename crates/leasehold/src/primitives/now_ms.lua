-- Returns the server's clock in ms. The time does not change during a call, and `call.lua` may have
-- read it already.
local function now_ms()
  time = time or redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
