-- Withdraws the mark of a waiter that no longer waits.
--
-- reservations  sorted set: our waiting writers or readers, each with the time its mark ends
-- waiter   the id of the waiter in `reservations`
-- channel  where the waiters listen: waiters that only the mark kept out may enter now
-- Returns  1  withdrawn
--          0  there was no mark

local function withdraw(reservations, waiter, channel)
  local gone = redis.call('ZREM', reservations, waiter)
  -- Only with the last mark: another mark would keep the same waiters out.
  if gone == 1 and redis.call('EXISTS', reservations) == 0 then
    wake_all(channel)
  end
  return gone
end
