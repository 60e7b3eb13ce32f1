-- Says how many permits are free and how many are held, without those whose leases are
-- over.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- channel  where the waiters listen; the message is the number of free permits
-- Returns  { free, held }  free is negative when some are missing
--          text WRONGKIND: not a semaphore

local function counts(permits, timeout, channel)
  local _, other = number_at(permits)
  other = other or foreign(timeout)
  if other then
    return other
  end
  local now = now_ms()
  reclaim(permits, timeout, channel, now)
  -- Those it did not get to are free as well.
  local ended = redis.call('ZCOUNT', timeout, '-inf', now)
  local free = tonumber(redis.call('GET', permits) or 0) + ended
  return { free, redis.call('ZCARD', timeout) - ended }
end
