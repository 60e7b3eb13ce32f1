-- Takes all permits that are free, or makes up for all that are missing.
--
-- semaphore  text: the number of free permits; none are free afterwards
-- marker     this request's: its reply
-- done       a marker that is not needed any more
-- Returns    n  how many there were; negative when some were missing
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
