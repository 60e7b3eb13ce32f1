-- Changes the number of free permits, and wakes the waiters: a release, when positive.
--
-- semaphore  text: the number of free permits
-- marker     this request's: its reply
-- done       a marker that is not needed any more
-- released   which request has given permits back last
-- asking     list: the clients to call, `number:permits`, in the order in which they came
-- permits    how many more are free; negative for fewer
-- if_there   1: only a semaphore that exists, else it is made
-- channel    where the waiters listen: `publish_free.lua`
-- Returns    { 1, listeners }  done; so many connections were told, -1 when that can't be known
--            { 0, -1 }         there was none, and none was made
--            text WRONGKIND: not a semaphore; nothing was changed

local function add(semaphore, marker, done, released, asking, permits, if_there, channel)
  local before = redis.call('GET', marker)
  if before then
    return { tonumber(before), -1 }
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  -- A first write that works when the server is out of memory: a release has to.
  redis.call('DEL', done)
  local reply = (free or if_there == '0') and 1 or 0
  local failed = remember(marker, reply)
  if failed or reply == 0 then
    return failed or { 0, -1 }
  end
  -- INCRBY, not SET: it keeps the expiry that the semaphore may have.
  free = redis.pcall('INCRBY', semaphore, permits)
  if type(free) == 'table' then
    redis.call('DEL', marker)
    return free.err
  end
  -- For a waiter that asks because of the message and finds that others were quicker: the
  -- message was no flood. Only a hint, which an ACL may deny.
  if tonumber(permits) > 0 then redis.pcall('SET', released, marker, 'PX', 60000) end
  -- The number that is free, not the number released: waiters that need more sleep on.
  return { 1, publish_free(asking, channel, free, tonumber(permits), 0) }
end
