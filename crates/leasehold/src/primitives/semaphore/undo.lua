-- Gives back the permits that an acquire was granted. If this request runs first, the acquire is
-- granted nothing.
--
-- semaphore  text: the number of free permits
-- marker     the marker of that acquire
-- asking     list: the waiting clients, `number:permits`, in the order in which they asked
-- channel    where the waiters listen: `publish_free.lua`
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
  -- A first write that succeeds even if the server is out of memory.
  redis.call('DEL', marker)
  -- Noted even if there was nothing to undo: an acquire that runs after its undo grants nothing.
  local failed = remember(marker, 'undone')
  -- A semaphore that was deleted since then is not made again.
  if failed or taken == 0 or not free then
    return failed or 0
  end
  free = redis.pcall('INCRBY', semaphore, taken)
  if type(free) == 'table' then
    -- An ACL denies it: the next undo must find how much to give back.
    remember(marker, before)
    return free.err
  end
  publish_free(asking, channel, free, taken, 0)
  return taken
end
