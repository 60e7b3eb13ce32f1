-- Wakes all waiters, whatever they wait for. To Redisson's threads a message is the only hint:
-- a step that may let in several sends three. `1` wakes each thread that sleeps; a thread that has
-- just been refused and does not sleep yet would miss it, and sleep for the rest of a lease. `0`
-- wakes one thread of each process, and is kept for the next one that goes to sleep. Redisson
-- 3.16.8 may handle a `0` before the `1`: then it goes to a thread that sleeps, and the second is
-- kept. An ACL may deny the channel. Gives how many connections were told.
local function wake_all(channel)
  local told = redis.pcall('PUBLISH', channel, '1')
  redis.pcall('PUBLISH', channel, '0')
  redis.pcall('PUBLISH', channel, '0')
  return type(told) == 'number' and told or 0
end
