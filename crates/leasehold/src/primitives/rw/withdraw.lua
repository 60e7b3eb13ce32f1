-- Takes back the mark of a writer that waits no more.
--
-- writers  sorted set: our waiting writers, each with the time its mark ends
-- waiter   who waited, in `writers`
-- channel  where the waiters listen: readers that only the mark kept out may come now
-- Returns  1  taken back
--          0  there was none

local function withdraw(writers, waiter, channel)
  local gone = redis.call('ZREM', writers, waiter)
  if gone == 1 and redis.call('EXISTS', writers) == 0 then
    wake_all(channel)
  end
  return gone
end
