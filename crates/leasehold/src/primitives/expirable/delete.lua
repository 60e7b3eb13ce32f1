-- Removes the semaphore, and with it all permits that are held.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- marker   this request's: its reply
-- done     a marker that is not needed any more
-- Returns  1  removed
--          0  there was none
--          text WRONGKIND: not a semaphore; nothing was changed

local function delete(permits, timeout, marker, done)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  -- A first write that works when the server is out of memory.
  redis.call('DEL', done)
  local there = (free or redis.call('ZCARD', timeout) > 0) and 1 or 0
  local failed = remember(marker, there)
  if failed then
    return failed
  end
  redis.call('DEL', permits, timeout)
  return there
end
