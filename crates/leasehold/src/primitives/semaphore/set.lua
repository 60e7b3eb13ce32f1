-- Makes the semaphore, unless it exists.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- asking     list: the waiting clients, `number:permits`, in the order in which they asked
-- permits    how many permits are free at first
-- expiry_ms  how long the semaphore lives; 0: forever
-- channel    where the waiters listen: `publish_free.lua`
-- Returns    1  made
--            0  it existed; nothing was changed
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
