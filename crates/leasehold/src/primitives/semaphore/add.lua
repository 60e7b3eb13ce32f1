-- Changes the number of free permits, and wakes the waiters. A positive change is a release.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- released   text: the marker of the request that last gave permits back
-- asking     list: the waiting clients, `number:permits`, in the order in which they asked
-- permits    how many more are free; negative for fewer
-- if_exists  1: change only a semaphore that exists; 0: make it if it does not exist
-- channel    where the waiters listen: `publish_free.lua`
-- Returns    { 1, listeners }  done; this number of connections was notified, -1 if it is not known
--            { 0, -1 }         it did not exist, and was not made
--            text WRONGKIND: not a semaphore; nothing was changed

local function add(semaphore, marker, done, released, asking, permits, if_exists, channel)
  local before = redis.call('GET', marker)
  if before then
    return { tonumber(before), -1 }
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  -- A first write that succeeds even if the server is out of memory, because a release must.
  redis.call('DEL', done)
  local reply = (free or if_exists == '0') and 1 or 0
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
  -- A waiter that asks because of the message may find that other clients were quicker. A changed
  -- `released` shows it that the message was not part of a flood. Only a hint, which an ACL may
  -- deny.
  if tonumber(permits) > 0 then redis.pcall('SET', released, marker, 'PX', 60000) end
  -- Publishes the number of free permits, not of released ones: a waiter that needs more than are
  -- free sleeps on.
  return { 1, publish_free(asking, channel, free, tonumber(permits), 0) }
end
