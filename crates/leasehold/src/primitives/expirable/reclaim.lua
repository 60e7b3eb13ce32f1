-- Frees permits that are in use. ZREM runs first because it succeeds when the server is out of
-- memory. Commands that an ACL may deny run before anything is changed: a permit that was removed
-- from the set but not counted would be lost forever. Gives the number of connections that were
-- notified, as far as known.
local function give_back(permits, timeout, members, asking, channel)
  redis.call('ZREM', timeout, '')
  redis.call('INCRBY', permits, 0)
  local removed = redis.call('ZREM', timeout, unpack(members))
  -- An asynchronous waiter of Redisson may sleep to the end of a lease that was renewed meanwhile.
  -- From then on it is subscribed twice, and a message that the first listener takes is lost. Some
  -- more messages reach the waiter; otherwise it would sleep to the end of the lease it knows.
  local free = redis.call('INCRBY', permits, removed)
  local receivers = publish_free(asking, channel, free, removed, 8)
  return math.max(receivers, 0)
end

-- Takes back permits whose leases are over, a limited number at a time, because there can be any
-- number.
local function reclaim(permits, timeout, asking, channel, now)
  local ended = redis.call('ZRANGEBYSCORE', timeout, 0, now, 'LIMIT', 0, 1000)
  if #ended > 0 then give_back(permits, timeout, ended, asking, channel) end
end
