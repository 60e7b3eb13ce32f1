-- Leaves a request's reply under its marker, so that the same request changes nothing when it
-- comes a second time: such a step looks for its marker before anything else. Gives false, or what stands in the way.
local function remember(marker, reply)
  return redis.pcall('SET', marker, reply, 'PX', 60000).err or false
end
