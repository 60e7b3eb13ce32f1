-- Sets how many permits there are in total, and makes the semaphore if it does not exist.
--
-- permits  text: the number of free permits; negative when more are held than exist
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- asking   list: the waiting clients, `number:permits`, in the order in which they asked
-- total    how many permits there are in total
-- channel  where the waiters listen; the message is the number of free permits
-- Returns  1
--          text WRONGKIND: not a semaphore; nothing was changed

local function set(permits, timeout, marker, done, asking, total, channel)
  if redis.call('GET', marker) then
    return 1
  end
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local failed = remember(marker, 1)
  if failed then
    return failed
  end
  -- Permits that are in use count even if the number was removed.
  local more = total - (free or 0) - redis.call('ZCARD', timeout)
  local changed = (more ~= 0 or not free) and redis.pcall('INCRBY', permits, more)
  if type(changed) == 'table' then
    redis.call('DEL', marker)
    return changed.err
  end
  redis.pcall('DEL', done)
  if changed then publish_free(asking, channel, changed, changed, 0) end
  return 1
end
