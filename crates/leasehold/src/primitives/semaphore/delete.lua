-- Removes the semaphore.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- Returns    1  removed
--            0  it did not exist
--            text WRONGKIND: not a semaphore; nothing was changed

local function delete(semaphore, marker, done)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  -- A first write that succeeds even if the server is out of memory.
  redis.call('DEL', done)
  local failed = remember(marker, free and 1 or 0)
  if failed then
    return failed
  end
  return redis.call('DEL', semaphore)
end
