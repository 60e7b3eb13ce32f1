-- Wakes all who wait, whatever they wait for. `1` wakes each thread of Redisson's that
-- sleeps; one that has just been refused and does not sleep yet would miss it, and sleep for
-- the rest of a lease. `0` is kept for the next that goes to sleep, one of each process: it
-- wakes one only. An ACL may deny the channel.
local function wake_all(channel)
  redis.pcall('PUBLISH', channel, '1')
  redis.pcall('PUBLISH', channel, '0')
end
