-- Returns a number made of the ids of the 32 permits in use whose leases end first. It changes when
-- one of them is given back or acquired.
local function lease_fingerprint(timeout)
  local sum = 0
  for _, id in ipairs(redis.call('ZRANGE', timeout, 0, 31)) do
    local first = 0
    for at = 1, 6 do first = first * 256 + (string.byte(id, at) or 0) end
    sum = sum + first
  end
  -- Exact: 32 numbers of 48 bits need 53 bits.
  return sum
end

-- Takes permits with a lease, all of them or none.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking    list: the waiting clients, `number:permits`, in the order in which they asked
-- ids       the ids of the new permits, one after the other
-- lease_ms  how long these permits last
-- channel   where the waiters listen; the message is the number of free permits
-- client    this client and how many permits it wants, as in `asking`; empty if no release may
--           notify it
-- notified  1 if a release has notified this client, but another client was quicker
-- Returns   free           granted; this number is still free. A repeated request changes nothing
--           { free, ttl, exists, held, before }  not granted
--                          free: the number of free permits
--                          ttl: time until the next lease ends in ms, -1 for never
--                          exists: 0 if the semaphore does not exist, else 1
--                          held: the fingerprint of the permits in use
--                          before: how many clients are notified before this one, -1 if it is
--                          not
--           text WRONGKIND: not a semaphore; nothing was changed

local function acquire(permits, timeout, asking, ids, lease_ms, channel, client, notified)
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  if redis.call('ZSCORE', timeout, string.sub(ids, 1, 16)) then
    return tonumber(free or 0)
  end
  -- The server's clock: all clients must agree on the end of a lease.
  local now = now_ms()
  reclaim(permits, timeout, asking, channel, now)
  free = redis.call('GET', permits)
  local exists = free and 1 or 0
  free = tonumber(free or 0)
  if free < #ids / 16 then
    local next, ttl = redis.call('ZRANGE', timeout, 0, 0, 'WITHSCORES')[2], -1
    if next and tonumber(next) < NEVER then ttl = math.max(tonumber(next) - now, 0) end
    local before = client ~= '' and clients_before(asking, client, notified) or -1
    return { free, ttl, exists, lease_fingerprint(timeout), before }
  end
  -- The set must not outlive a semaphore that has an expiry. Read before anything is written: an
  -- ACL may deny any of these commands, and half a grant would last for a full lease.
  local ttl = redis.call('PTTL', permits)
  free = redis.call('DECRBY', permits, #ids / 16)
  local ends, failed = math.min(now + lease_ms, NEVER - 1), nil
  for at = 1, #ids, 16 do
    local added = redis.pcall('ZADD', timeout, ends, string.sub(ids, at, at + 15))
    failed = failed or type(added) == 'table' and added.err
  end
  if ttl > 0 and not failed then
    local set = redis.pcall('PEXPIRE', timeout, ttl)
    failed = type(set) == 'table' and set.err
  end
  if failed then
    for at = 1, #ids, 16 do
      redis.pcall('ZREM', timeout, string.sub(ids, at, at + 15))
    end
    redis.call('INCRBY', permits, #ids / 16)
  end
  -- To notify a client that has its permits would be wasted, and would delay the next client.
  if client ~= '' then redis.pcall('LREM', asking, 0, client) end
  return failed or free
end
