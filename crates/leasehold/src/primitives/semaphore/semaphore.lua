-- A semaphore.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [acquire] ---------------------------------------------------------------------------------------

-- Grants permits to the waiters of a line, in line order, as long as enough are free.
--
-- semaphore  text: the number of free permits
-- marker     text: "waiters permits free": what this request has granted, and what remained free
-- done       a marker that is no longer needed
-- released   text: the marker of the request that last gave permits back
-- asking     list: the waiting clients, `number:permits`, in order of arrival
-- sizes      how many permits each waiter wants, separated by spaces
-- client     this client and how many permits its first waiter wants, as in `asking`; empty if no
--            release may notify it
-- notified   1 if a release has notified this client, but another client was quicker
-- Returns    { grants, free, exists, released, before }
--                  grants: how many of the waiters were granted
--                  free: the number of permits that are free now
--                  exists: 0 if the semaphore does not exist, else 1
--                  released: the content of `released`, if no waiter was granted
--                  before: how many clients are notified before this one, -1 if it is not
--                          in `asking`
--            text WRONGKIND: not a semaphore; nothing was changed

local function acquire(semaphore, marker, done, released, asking, sizes, client, notified)
  local before = redis.call('GET', marker)
  if before then
    -- This request has run before, or its own undo has.
    local grants, left = string.match(before, '^(%d+) %d+ (-?%d+)$')
    return { tonumber(grants or 0), tonumber(left or 0), 1, '', -1 }
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  local exists = free and 1 or 0
  free = free or 0
  local grants, taken = 0, 0
  for size in string.gmatch(sizes, '%d+') do
    -- The first waiter that wants too many permits ends the loop, so that no later waiter overtakes
    -- it.
    if taken + size > free then break end
    grants, taken = grants + 1, taken + size
  end
  -- The marker is written first: permits without a marker could never be undone. A refusal also
  -- leaves a marker: otherwise a repeated copy of the request could be granted permits after its
  -- waiter has left.
  local failed = remember(marker, grants .. ' ' .. taken .. ' ' .. free - taken)
  if failed then
    return failed
  end
  if taken > 0 then
    local left = redis.pcall('DECRBY', semaphore, taken)
    if type(left) == 'table' then
      redis.call('DEL', marker)
      return left.err
    end
  end
  redis.pcall('DEL', done)
  -- This is only a hint, which an ACL may deny.
  local last = grants == 0 and redis.pcall('GET', released)
  last = type(last) == 'string' and last or ''
  local before = -1
  if client ~= '' then
    if grants == 0 then
      before = clients_before(asking, client, notified)
    else
      -- Notifying a client that has its permits would be useless, and would delay the next client.
      redis.pcall('LREM', asking, 0, client)
    end
  end
  return { grants, free - taken, exists, last, before }
end

-- [delist] ----------------------------------------------------------------------------------------

-- Removes a client from the list, because the client no longer waits. If a release has already
-- notified this client and permits are free, notifies the next client.
--
-- semaphore  text: the number of free permits
-- asking     list: the waiting clients, `number:permits`, in order of arrival
-- client     this client, and how many permits it wanted
-- channel    where the waiters listen: see `publish_free` in `common.lua`
-- Returns    n     how often the client was in the list
--            text  the list can't be changed; WRONGKIND: not a semaphore

local function delist(semaphore, asking, client, channel)
  local times = redis.call('LREM', asking, 0, client)
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  if times == 0 then notify_waiting(asking, channel, free or 0, 1) end
  return times
end

-- [undo] ------------------------------------------------------------------------------------------

-- Gives back the permits that an acquire was granted. If this request runs first, the acquire is
-- granted nothing.
--
-- semaphore  text: the number of free permits
-- marker     the marker of that acquire
-- asking     list: the waiting clients, `number:permits`, in order of arrival
-- channel    where the waiters listen: see `publish_free` in `common.lua`
-- Returns    n  permits given back; 0 if the acquire was granted none, or was undone before
--            text WRONGKIND: not a semaphore; nothing was changed

local function undo(semaphore, marker, asking, channel)
  local before = redis.call('GET', marker)
  if before == 'undone' then
    return 0
  end
  local taken = before and tonumber(string.match(before, '^%d+ (%d+) ')) or 0
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  -- This first write succeeds even if the server is out of memory.
  redis.call('DEL', marker)
  -- Note the undo even if there was nothing to undo: an acquire that runs after its undo grants
  -- nothing.
  local failed = remember(marker, 'undone')
  -- A semaphore that was deleted after the acquire is not created again.
  if failed or taken == 0 or not free then
    return failed or 0
  end
  free = redis.pcall('INCRBY', semaphore, taken)
  if type(free) == 'table' then
    -- An ACL denies the command. Restore the marker, because the next undo must find how much to
    -- give back.
    remember(marker, before)
    return free.err
  end
  publish_free(asking, channel, free, taken, 0)
  return taken
end

-- [add] -------------------------------------------------------------------------------------------

-- Changes the number of free permits, and wakes the waiters. A positive change is a release.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- released   text: the marker of the request that last gave permits back
-- asking     list: the waiting clients, `number:permits`, in order of arrival
-- permits    how many more are free; negative for fewer
-- if_exists  1: change only a semaphore that exists; 0: make it if it does not exist
-- channel    where the waiters listen: see `publish_free` in `common.lua`
-- Returns    { 1, listeners }  done; `listeners` connections got the message, -1 if it is not known
--            { 0, -1 }         the semaphore did not exist, and was not made
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
  -- This first write succeeds even if the server is out of memory, because a release must succeed.
  redis.call('DEL', done)
  local reply = (free or if_exists == '0') and 1 or 0
  local failed = remember(marker, reply)
  if failed or reply == 0 then
    return failed or { 0, -1 }
  end
  -- Use INCRBY and not SET, because it keeps the expiry that the semaphore may have.
  free = redis.pcall('INCRBY', semaphore, permits)
  if type(free) == 'table' then
    redis.call('DEL', marker)
    return free.err
  end
  -- A waiter that sends a request because of the message may find that other clients were quicker.
  -- A changed `released` shows this waiter that the message was about a release, and not part of a
  -- flood of messages. This is only a hint, which an ACL may deny.
  if tonumber(permits) > 0 then redis.pcall('SET', released, marker, 'PX', 60000) end
  -- Publish the number of free permits, and not of released ones, so that a waiter that needs more
  -- than are free continues to sleep.
  return { 1, publish_free(asking, channel, free, tonumber(permits), 0) }
end

-- [drain] -----------------------------------------------------------------------------------------

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
    -- Use INCRBY and not SET, because it keeps the expiry that the semaphore may have.
    local left = redis.pcall('INCRBY', semaphore, -free)
    if type(left) == 'table' then
      redis.call('DEL', marker)
      return left.err
    end
  end
  redis.pcall('DEL', done)
  return free
end

-- [set] -------------------------------------------------------------------------------------------

-- Makes the semaphore, unless it exists.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- asking     list: the waiting clients, `number:permits`, in order of arrival
-- permits    how many permits are free at first
-- expiry_ms  how long the semaphore lives; 0 forever
-- channel    where the waiters listen: see `publish_free` in `common.lua`
-- Returns    1  made
--            0  the semaphore existed; nothing was changed
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

-- [available] -------------------------------------------------------------------------------------

-- Returns how many permits are free.
--
-- semaphore  text: the number of free permits
-- Returns    { n, exists }  n is negative when permits are missing; exists is 0 if the semaphore
--                           does not exist, else 1
--            text WRONGKIND: not a semaphore

local function available(semaphore)
  local free, other = number_at(semaphore)
  return other or { free or 0, free and 1 or 0 }
end

-- [delete] ----------------------------------------------------------------------------------------

-- Removes the semaphore.
--
-- semaphore  text: the number of free permits
-- marker     text: the reply to this request, once it has run
-- done       a marker that is no longer needed
-- Returns    1  removed
--            0  the semaphore did not exist
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
  -- This first write succeeds even if the server is out of memory.
  redis.call('DEL', done)
  local failed = remember(marker, free and 1 or 0)
  if failed then
    return failed
  end
  return redis.call('DEL', semaphore)
end
