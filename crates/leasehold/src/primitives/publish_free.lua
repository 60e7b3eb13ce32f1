-- Tells the waiters for permits how many are free, after `more` have become free. Gives how many
-- connections heard it, -1 when that can't be known. Of Redisson's threads as many ask as a
-- message says, but of its asynchronous waiters one for each message, whatever that says. So
-- there is a message for each permit, within reason, unless nobody heard the first, which has the
-- number. Redisson fails on a negative number. An ACL may deny the channel.
local function publish_free(channel, free, more)
  if free <= 0 then
    return -1
  end
  local listeners = redis.pcall('PUBLISH', channel, free)
  if listeners == 0 then
    return 0
  end
  for _ = 2, math.min(more, 64) do redis.pcall('PUBLISH', channel, '0') end
  return type(listeners) == 'number' and listeners or -1
end
