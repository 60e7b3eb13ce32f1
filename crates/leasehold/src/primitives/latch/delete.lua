-- Removes the latch, and wakes its waiters, which then continue.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- channel  where the waiters listen; the message is "1", as Redisson sends it, which wakes our
--          waiters but not Redisson's
-- Returns  1  removed
--          0  it did not exist
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
  -- A first write that succeeds even if the server is out of memory.
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
