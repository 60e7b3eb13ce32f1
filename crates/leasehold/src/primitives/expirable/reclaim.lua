-- Frees permits that are in use. ZREM runs first because it succeeds when the server is out of
-- memory. Commands that an ACL may deny run before anything is changed: a permit that was removed
-- from the set but not counted would be lost forever. Gives the number of connections that were
-- notified, as far as known.
local function give_back(permits, timeout, members, asking, channel)
  redis.call('ZREM', timeout, '')
  redis.call('INCRBY', permits, 0)
  local removed = redis.call('ZREM', timeout, unpack(members))
  -- An asynchronous waiter of Redisson sleeps until the end of a lease. If that lease was renewed,
  -- the waiter is then subscribed twice, and a message that its first listener takes is lost. Eight
  -- more messages reach its second listener; otherwise it would sleep until the end of the lease
  -- that it knows.
  local free = redis.call('INCRBY', permits, removed)
  local receivers = publish_free(asking, channel, free, removed, 8)
  return math.max(receivers, 0)
end

-- Takes back permits whose leases are over, a limited number at a time: there can be very many.
local function reclaim(permits, timeout, asking, channel, now)
  local ended = redis.call('ZRANGEBYSCORE', timeout, 0, now, 'LIMIT', 0, 1000)
  if #ended > 0 then give_back(permits, timeout, ended, asking, channel) end
end
