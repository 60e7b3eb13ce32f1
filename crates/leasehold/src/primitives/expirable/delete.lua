-- Removes the semaphore, and all permits that are held.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- Returns  1  removed
--          0  it did not exist
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
  -- A first write that succeeds even if the server is out of memory.
  redis.call('DEL', done)
  local exists = (free or redis.call('ZCARD', timeout) > 0) and 1 or 0
  local failed = remember(marker, exists)
  if failed then
    return failed
  end
  redis.call('DEL', permits, timeout)
  return exists
end
