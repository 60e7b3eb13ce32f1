-- Sets the latch to a count, unless it has one.
--
-- latch    text: the count
-- marker   this request's: its reply
-- done     a marker that is not needed any more
-- opened   text: when the latch was open last, in ms of the server's clock
-- count    what is to be counted down
-- channel  where the waiters listen; the message is "1", as Redisson sends it
-- Returns  1  set
--          0  it has a count; nothing was changed
--          text WRONGKIND: not a latch; nothing was changed

local function set(latch, marker, done, opened, count, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local there, other = number_at(latch)
  if other then
    return other
  end
  local failed = remember(marker, there and 0 or 1)
  if failed or there then
    return failed or 0
  end
  local made = redis.pcall('SET', latch, count)
  if made.err then
    redis.call('DEL', marker)
    return made.err
  end
  redis.pcall('DEL', done)
  -- The latch was open until now. If Redisson opened it, no note says so, and its message may
  -- have been lost.
  note_opened(opened)
  redis.pcall('PUBLISH', channel, '1')
  return 1
end
