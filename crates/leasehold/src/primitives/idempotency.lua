-- Stores the reply to a request under its marker. A repeated request then changes nothing, because
-- a step with a marker first checks whether the marker exists. Returns false, or an error text.
local function remember(marker, reply)
  return redis.pcall('SET', marker, reply, 'PX', 60000).err or false
end
