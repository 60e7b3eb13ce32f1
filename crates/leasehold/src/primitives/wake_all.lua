-- Wakes all waiters, no matter what they wait for. Redisson's threads learn of a release only from
-- messages, so a step that may let in several waiters sends three. `1` wakes each sleeping thread.
-- A thread that has just been refused and does not sleep yet would miss it, and sleep for the rest
-- of a lease. `0` wakes one thread of each process; if none sleeps, Redisson saves it for the next
-- thread that is about to sleep. Redisson 3.16.8 may handle a `0` before the `1`. Then a sleeping
-- thread consumes the first `0`, and the second is saved. An ACL may deny the channel. Returns how
-- many connections got the message.
local function wake_all(channel)
  local receivers = redis.pcall('PUBLISH', channel, '1')
  redis.pcall('PUBLISH', channel, '0')
  redis.pcall('PUBLISH', channel, '0')
  return type(receivers) == 'number' and receivers or 0
end
