-- Returns how many permits are free and how many are held. Permits whose leases are over count as
-- free.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking   list: the waiting clients, `number:permits`, in the order in which they asked
-- channel  where the waiters listen; the message is the number of free permits
-- Returns  { free, held, exists }  free is negative when permits are missing; exists is 0 if the
--                                 semaphore does not exist, else 1
--          text WRONGKIND: not a semaphore

local function counts(permits, timeout, asking, channel)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now = now_ms()
  reclaim(permits, timeout, asking, channel, now)
  -- `reclaim` takes back a limited number at a time. The other permits whose leases are over are
  -- free, too.
  local ended = redis.call('ZCOUNT', timeout, '-inf', now)
  local free = redis.call('GET', permits)
  local held = redis.call('ZCARD', timeout) - ended
  return { tonumber(free or 0) + ended, held, free and 1 or 0 }
end
