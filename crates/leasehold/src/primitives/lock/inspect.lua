-- Returns the holder of the lock, and for how long it has the lock.
--
-- lock     hash: one field per hold, `uuid:n`
-- Returns  { ttl, holder, count }  ttl in ms, -1 without expiry
--          { -2 }                  free
--          text WRONGKIND: not a plain lock

local function inspect(lock)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return { -2 }
  end
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  local hold = redis.call('HGETALL', lock)
  return { redis.call('PTTL', lock), hold[1], hold[2] }
end
