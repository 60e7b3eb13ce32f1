-- Takes back the mark of one that waits no more.
--
-- marks    sorted set: our writers, or readers, that wait, each with the time its mark ends
-- waiter   who waited, in `marks`
-- channel  where the waiters listen: those whom only the mark kept out may come now
-- Returns  1  taken back
--          0  there was none

local function withdraw(marks, waiter, channel)
  local gone = redis.call('ZREM', marks, waiter)
  -- With the last mark only: another one keeps the same waiters out.
  if gone == 1 and redis.call('EXISTS', marks) == 0 then
    wake_all(channel)
  end
  return gone
end
