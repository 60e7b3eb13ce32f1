-- Tells who waits for permits how many are free, after so many more have become free; says
-- how many connections heard it, -1 when that can't be known. As many of Redisson's threads
-- ask as a message says, but one asynchronous waiter for each message, whatever it says: so
-- there is one for each of the permits, within reason, and the number is in the first.
-- Redisson fails on a negative one. An ACL may deny the channel.
local function publish_free(channel, free, more)
  if free <= 0 then
    return -1
  end
  local listeners = redis.pcall('PUBLISH', channel, free)
  for _ = 2, math.min(more, 64) do redis.pcall('PUBLISH', channel, '0') end
  return type(listeners) == 'number' and listeners or -1
end
