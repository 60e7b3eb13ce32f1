-- Gives back what an acquire was granted, also one that comes later than this.
--
-- semaphore  text: the number of free permits
-- marker     that acquire's
-- channel    where the waiters listen: `tell.lua`
-- Returns    n  permits given back; 0 if it was granted none, or was undone before
--            text WRONGKIND: not a semaphore; nothing was changed

local function undo(semaphore, marker, channel)
  local before = redis.call('GET', marker)
  if before == 'undone' then
    return 0
  end
  local taken = before and tonumber(string.match(before, '^%d+ (%d+) ')) or 0
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  -- A first write that works when the server is out of memory.
  redis.call('DEL', marker)
  local failed = remember(marker, 'undone')
  -- A semaphore that was deleted meanwhile is not made again.
  if failed or taken == 0 or not free then
    return failed or 0
  end
  free = redis.pcall('INCRBY', semaphore, taken)
  if type(free) == 'table' then
    -- An ACL denies it: who asks again must find what there is to give back.
    remember(marker, before)
    return free.err
  end
  publish_free(channel, free, taken)
  return taken
end
