-- Makes the semaphore, unless there is one.
--
-- semaphore  text: the number of free permits
-- marker     this request's: its reply
-- done       a marker that is not needed any more
-- asking     list: the clients to call, `number:permits`, in the order in which they came
-- permits    how many are free at first
-- expiry_ms  how long the semaphore lives; 0 for ever
-- channel    where the waiters listen: `publish_free.lua`
-- Returns    1  made
--            0  there was one; it stays as it is
--            text WRONGKIND: not a semaphore; nothing was changed

local function set(semaphore, marker, done, asking, permits, expiry_ms, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  local failed = remember(marker, free and 0 or 1)
  if failed or free then
    return failed or 0
  end
  local made
  if expiry_ms == '0' then
    made = redis.pcall('SET', semaphore, permits)
  else
    made = redis.pcall('SET', semaphore, permits, 'PX', expiry_ms)
  end
  if made.err then
    redis.call('DEL', marker)
    return made.err
  end
  redis.pcall('DEL', done)
  publish_free(asking, channel, tonumber(permits), tonumber(permits), 0)
  return 1
end
