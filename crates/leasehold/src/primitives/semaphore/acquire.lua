-- Grants permits to the waiters of a line, in their order, as long as enough are free.
--
-- semaphore  text: the number of free permits
-- marker     text: "waiters permits free": what this request has granted, and what remained free
-- done       a marker that is no longer needed
-- released   text: the marker of the request that last gave permits back
-- asking     list: the waiting clients, `number:permits`, in the order in which they asked
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
    -- The first waiter that wants too many ends the loop, so that no later waiter overtakes it.
    if taken + size > free then break end
    grants, taken = grants + 1, taken + size
  end
  -- The marker is written first: permits without a marker could never be undone. A refusal leaves a
  -- marker, too: otherwise a repeated copy of the request could be granted with no waiter to take
  -- the permits.
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
  -- Only a hint, which an ACL may deny.
  local last = grants == 0 and redis.pcall('GET', released)
  last = type(last) == 'string' and last or ''
  local before = -1
  if client ~= '' then
    if grants == 0 then
      before = clients_before(asking, client, notified)
    else
      -- To notify a client that has its permits would be wasted, and would delay the next client.
      redis.pcall('LREM', asking, 0, client)
    end
  end
  return { grants, free - taken, exists, last, before }
end
