-- Removes the latch. Whoever waits for it goes on.
--
-- latch    text: the count
-- marker   this request's: its reply
-- done     a marker that is not needed any more
-- opened   text: when the latch was open last, in ms of the server's clock
-- channel  where the waiters listen; the message is "1", as Redisson sends it: its own
--          waiters are not woken by that, ours are
-- Returns  1  removed
--          0  there was none
--          text WRONGKIND: not a latch; nothing was changed

local function delete(latch, marker, done, opened, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local count, other = number_at(latch)
  if other then
    return other
  end
  -- A first write that works when the server is out of memory.
  redis.call('DEL', done)
  local failed = remember(marker, count and 1 or 0)
  if failed or not count then
    return failed or 0
  end
  redis.call('DEL', latch)
  note_opened(opened)
  redis.pcall('PUBLISH', channel, '1')
  return 1
end
