-- Takes permits for the first askers of a line, in their order, as far as they go round.
--
-- semaphore  text: the number of free permits
-- marker     this request's: "asks permits free", what it was granted and what was left
-- done       a marker that is not needed any more
-- released   which request has given permits back last
-- asking     list: the clients to call, `number:permits`, in the order in which they came
-- sizes      how many permits each asks for, parted by spaces
-- client     this client and what its first waiter wants, as in `asking`; nothing if nobody is to
--            call it
-- called     1 if a release has called it, and somebody else was quicker
-- Returns    { asks, free, there, released, before }  so many of them were granted; so many
--                                             permits are free now; there is 0 when there is no
--                                             semaphore, else 1; what stands at `released`,
--                                             if none was granted; so many clients are called
--                                             before this one, -1 if it is not called
--            text WRONGKIND: not a semaphore; nothing was changed

local function acquire(semaphore, marker, done, released, asking, sizes, client, called)
  local before = redis.call('GET', marker)
  if before then
    -- This request has come before, or its own undo has.
    local asks, left = string.match(before, '^(%d+) %d+ (-?%d+)$')
    return { tonumber(asks or 0), tonumber(left or 0), 1, '', -1 }
  end
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  local there = free and 1 or 0
  free = free or 0
  local asks, taken = 0, 0
  for size in string.gmatch(sizes, '%d+') do
    -- The first that does not fit ends it: a waiter that asks for many is not overtaken.
    if taken + size > free then break end
    asks, taken = asks + 1, taken + size
  end
  -- The marker first: permits without one could never be undone. A refusal leaves one as well:
  -- the same request could be granted when it comes a second time, for nobody.
  local failed = remember(marker, asks .. ' ' .. taken .. ' ' .. free - taken)
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
  local last = asks == 0 and redis.pcall('GET', released)
  last = type(last) == 'string' and last or ''
  local before = -1
  if client ~= '' then
    if asks == 0 then
      before = place_of(asking, client, called)
    else
      -- A call of a client that has its permits would be wasted, and delay the next client.
      redis.pcall('LREM', asking, 0, client)
    end
  end
  return { asks, free - taken, there, last, before }
end
