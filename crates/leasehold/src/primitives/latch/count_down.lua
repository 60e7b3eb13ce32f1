-- Counts down, and opens the latch at zero: removes its key and wakes the waiters.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- by       the number by which to count down
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  n  the remaining count; 0 if the latch is open
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
  -- A first write that succeeds even if the server is out of memory, because the waiters must be
  -- notified.
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
