-- Takes all permits that are free, or adds all permits that are missing.
--
-- semaphore  text: the number of free permits; none are free afterwards
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- Returns    n  how many were free; negative when permits were missing
--            text WRONGKIND: not a semaphore; nothing was changed

local function drain(semaphore, marker, done)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  free = free or 0
  local failed = remember(marker, free)
  if failed then
    return failed
  end
  if free ~= 0 then
    -- INCRBY, not SET: it keeps the expiry that the semaphore may have.
    local left = redis.pcall('INCRBY', semaphore, -free)
    if type(left) == 'table' then
      redis.call('DEL', marker)
      return left.err
    end
  end
  redis.pcall('DEL', done)
  return free
end
