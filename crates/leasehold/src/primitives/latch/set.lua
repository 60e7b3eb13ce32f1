-- Sets the latch to a count, unless it has one.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- count    the count to set
-- channel  where the waiters listen; the message is "1", as Redisson sends it
-- Returns  1  set
--          0  it has a count; nothing was changed
--          text WRONGKIND: not a latch; nothing was changed

local function set(latch, marker, done, opened, count, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local exists, other = number_at(latch)
  if other then
    return other
  end
  local failed = remember(marker, exists and 0 or 1)
  if failed or exists then
    return failed or 0
  end
  local made = redis.pcall('SET', latch, count)
  if made.err then
    redis.call('DEL', marker)
    return made.err
  end
  redis.pcall('DEL', done)
  -- The latch was open until now. If Redisson opened it, this was not noted, and Redisson's message
  -- may have been lost.
  note_opened(opened)
  redis.pcall('PUBLISH', channel, '1')
  return 1
end
