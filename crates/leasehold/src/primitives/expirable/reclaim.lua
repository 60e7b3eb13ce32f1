-- Frees permits that are in use. ZREM first: it works when the server is out of memory. Then
-- what an ACL may deny, before anything is changed: a permit that was taken out of the set and
-- not counted would be gone for ever. Gives how many connections were told, as far as known.
local function give_back(permits, timeout, members, asking, channel)
  redis.call('ZREM', timeout, '')
  redis.call('INCRBY', permits, 0)
  local removed = redis.call('ZREM', timeout, unpack(members))
  -- An asynchronous waiter of Redisson's that has slept to the end of a lease, which was renewed
  -- meanwhile, listens twice from then on, and a message that the first listener takes is lost.
  -- Some more messages find the waiter; else it would sleep to the end of the lease it knows.
  local free = redis.call('INCRBY', permits, removed)
  local told = publish_free(asking, channel, free, removed, 8)
  return math.max(told, 0)
end

-- Takes back permits whose leases are over, some at a time: there can be any number.
local function reclaim(permits, timeout, asking, channel, now)
  local ended = redis.call('ZRANGEBYSCORE', timeout, 0, now, 'LIMIT', 0, 1000)
  if #ended > 0 then give_back(permits, timeout, ended, asking, channel) end
end
