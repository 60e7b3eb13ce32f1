-- The server's clock in ms. `call.lua` may have asked for the time: a call has one.
local function now_ms()
  time = time or redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
