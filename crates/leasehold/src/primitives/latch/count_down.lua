-- Counts down, and opens the latch at zero: its key goes and the waiters are woken.
--
-- latch    text: the count
-- marker   this request's: its reply
-- done     a marker that is not needed any more
-- opened   text: when the latch was open last, in ms of the server's clock
-- by       how many steps
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  n  left; 0 when it is open
--          text WRONGKIND: not a latch; nothing was changed

local function count_down(latch, marker, done, opened, by, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local count, other = number_at(latch)
  if other then
    return other
  end
  -- A first write that works when the server is out of memory: the waiters must be told.
  redis.call('DEL', done)
  local left = math.max((count or 0) - by, 0)
  local failed = remember(marker, left)
  if failed or not count then
    return failed or 0
  end
  if left > 0 then
    local changed = redis.pcall('DECRBY', latch, by)
    if type(changed) == 'table' then
      redis.call('DEL', marker)
      return changed.err
    end
    return left
  end
  redis.call('DEL', latch)
  if count > 0 then
    note_opened(opened)
    redis.pcall('PUBLISH', channel, '0')
  end
  return 0
end
