-- Withdraws the reservation of a waiter that no longer waits.
--
-- reservations  sorted set: our waiting writers or readers, each with the end of its reservation
-- waiter        the id of the waiter in `reservations`
-- channel       where the waiters listen: those that only the reservation kept out may enter now
-- Returns       1  withdrawn
--               0  there was no reservation

local function withdraw(reservations, waiter, channel)
  local gone = redis.call('ZREM', reservations, waiter)
  -- Waiters are woken only when no reservation remains: another one would still keep them out.
  if gone == 1 and redis.call('EXISTS', reservations) == 0 then
    wake_all(channel)
  end
  return gone
end
