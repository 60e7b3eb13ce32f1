-- A semaphore whose permits have leases.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [leases] ----------------------------------------------------------------------------------------

-- Redisson's expiry for a permit whose lease never ends.
local NEVER = 922337203685477

-- Checks that the leases are a sorted set that can be read. Returns false if they are, otherwise an
-- error.
local function not_a_semaphore(timeout)
  local size = redis.pcall('ZCARD', timeout)
  if type(size) ~= 'table' then
    return false
  end
  if string.find(size.err, 'WRONGTYPE', 1, true) then
    return 'WRONGKIND a semaphore whose leases are a ' .. redis.call('TYPE', timeout).ok
  end
  return size.err
end

-- Returns the set's member for a permit, and the end of its lease. Redisson 3.16.8 writes the id in
-- hex.
local function find(timeout, id)
  local score = redis.call('ZSCORE', timeout, id)
  if score then
    return id, tonumber(score)
  end
  local text = string.gsub(id, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end)
  score = redis.call('ZSCORE', timeout, text)
  return text, score and tonumber(score)
end

-- [reclaim] ---------------------------------------------------------------------------------------

-- Frees permits that are in use. ZREM runs first because it succeeds when the server is out of
-- memory. Commands that an ACL may deny run before anything is changed: a permit that was removed
-- from the set but not counted would be lost forever. Returns the number of connections that were
-- notified, as far as known.
local function give_back(permits, timeout, members, asking, channel)
  redis.call('ZREM', timeout, '')
  redis.call('INCRBY', permits, 0)
  local removed = redis.call('ZREM', timeout, unpack(members))
  -- An asynchronous waiter of Redisson sleeps until the end of a lease. If that lease was renewed,
  -- the waiter subscribes a second time, and a message that its first listener takes is lost. Eight
  -- more messages make sure that one reaches the second listener; otherwise the waiter would sleep
  -- until the end of the lease that it knows.
  local free = redis.call('INCRBY', permits, removed)
  local receivers = publish_free(asking, channel, free, removed, 8)
  return math.max(receivers, 0)
end

-- Takes back permits with expired leases, a limited number at a time, because there can be very
-- many.
local function reclaim(permits, timeout, asking, channel, now)
  local ended = redis.call('ZRANGEBYSCORE', timeout, 0, now, 'LIMIT', 0, 1000)
  if #ended > 0 then give_back(permits, timeout, ended, asking, channel) end
end

-- [acquire] ---------------------------------------------------------------------------------------

-- Returns a number made of the ids of the 32 permits in use whose leases end first. The number
-- changes when such a permit is given back or acquired.
local function lease_fingerprint(timeout)
  local sum = 0
  for _, id in ipairs(redis.call('ZRANGE', timeout, 0, 31)) do
    local first = 0
    for at = 1, 6 do first = first * 256 + (string.byte(id, at) or 0) end
    sum = sum + first
  end
  -- The sum is exact: 32 numbers of 48 bits need 53 bits.
  return sum
end

-- Takes permits with a lease, all of them or none.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking    list: the waiting clients, `number:permits`, in order of arrival
-- ids       the ids of the new permits, one after the other
-- lease_ms  how long these permits last
-- channel   where the waiters listen; the message is the number of free permits
-- client    this client and how many permits it wants, as in `asking`; empty if no release may
--           notify it
-- notified  1 if a release has notified this client, but another client was quicker
-- Returns   free           granted; `free` permits remain free. A repeated request changes nothing
--           { free, ttl, exists, held, before }  not granted
--                          free: the number of free permits
--                          ttl: time until the next lease ends in ms, -1 for never
--                          exists: 0 if the semaphore does not exist, else 1
--                          held: the fingerprint of the permits in use
--                          before: how many clients are notified before this one, -1 if this
--                          client is not in `asking`
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
  -- Use the server's clock: all clients must agree on the end of a lease.
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
  -- The set must not outlive a semaphore that has an expiry. Read the expiry before anything is
  -- written: an ACL may deny any of these commands, and half a grant would last for a full lease.
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
  -- Notifying a client that has its permits would be useless, and would delay the next client.
  if client ~= '' then redis.pcall('LREM', asking, 0, client) end
  return failed or free
end

-- [exchange] --------------------------------------------------------------------------------------

-- Replaces these permits with new ones, for the next waiter of their process. Changes no count and
-- sends no message, because no permit becomes free.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- ids       the ids of these permits, one after the other
-- next      the ids of the new permits, as many as in `ids`
-- lease_ms  how long the new permits last
-- Returns   1  done; a repeated request changes nothing
--           0  a permit was no longer held, or more are in use than exist; nothing was changed
--           text WRONGKIND: not a semaphore; nothing was changed

local function exchange(permits, timeout, ids, next, lease_ms)
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  if redis.call('ZSCORE', timeout, string.sub(next, 1, 16)) then
    return 1
  end
  if (free or 0) < 0 then
    return 0
  end
  local now, members = now_ms(), {}
  for at = 1, #ids, 16 do
    local member, score = find(timeout, string.sub(ids, at, at + 15))
    if not score or score <= now then
      return 0
    end
    members[#members + 1] = member
  end
  -- When the server is out of memory, it refuses ZADD unless the script has already written. ZREM
  -- is never refused, so this ZREM, which removes nothing, lets the ZADD through. The new permits
  -- are added first: an ACL may deny ZADD, and permits that were removed but not counted would be
  -- lost forever.
  redis.call('ZREM', timeout, '')
  for at = 1, #next, 16 do
    redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), string.sub(next, at, at + 15))
  end
  redis.call('ZREM', timeout, unpack(members))
  return 1
end

-- [renew] -----------------------------------------------------------------------------------------

-- Makes these permits last for at least a lease from now.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- ids       the permits' ids, one after the other
-- lease_ms  how long the permits last from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  the lease of a permit has expired; nothing was changed

local function renew(permits, timeout, ids, lease_ms, most_ms)
  local now, most = now_ms(), tonumber(most_ms)
  local ends, least = {}, NEVER
  for at = 1, #ids, 16 do
    local _, score = find(timeout, string.sub(ids, at, at + 15))
    if not score or score <= now then
      return 0
    end
    -- Only a lease longer than `most_ms` is shortened. Any other keeps its later end: an earlier
    -- request can arrive after a later one that asked for a longer lease.
    if score < now + lease_ms or (most > 0 and score > now + most) then
      score = math.min(now + lease_ms, NEVER - 1)
    end
    ends[at], least = score, math.min(least, score)
  end
  -- When the server is out of memory, it refuses ZADD unless the script has already written. ZREM
  -- is never refused, so this ZREM, which removes nothing, lets the ZADD through.
  redis.call('ZREM', timeout, '')
  for at = 1, #ids, 16 do
    local member = find(timeout, string.sub(ids, at, at + 15))
    redis.call('ZADD', timeout, ends[at], member)
  end
  return least - now
end

-- [why_lost] --------------------------------------------------------------------------------------

-- Returns why permits are no longer held.
--
-- marker   hash: a field per hold that was ended by force, with the label of the client that did it
-- holds    the ids of the permits in hex, separated by spaces
-- Returns  { note }  the note of the first permit that was taken back by force
--          0         there is no note

local function why_lost(marker, holds)
  for hold in string.gmatch(holds, '%S+') do
    local note = redis.call('HGET', marker, hold)
    if note then
      return { note }
    end
  end
  return 0
end

-- [release] ---------------------------------------------------------------------------------------

-- Gives permits back by their ids.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking   list: the waiting clients, `number:permits`, in order of arrival
-- ids      the ids, one after the other
-- all      1: all of them or none; 0: all that exist
-- channel  where the waiters listen; the message is the number of free permits
-- Returns  1 + n  all were held until now, and n connections were notified
--          0      a permit was not held, or its lease had ended; unless `all` is 1, the permits that
--                 are still in the set were given back anyway
--          text WRONGKIND: not a semaphore; nothing was changed

local function release(permits, timeout, asking, ids, all, channel)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now, held, members = now_ms(), 1, {}
  for at = 1, #ids, 16 do
    local member, score = find(timeout, string.sub(ids, at, at + 15))
    if score then members[#members + 1] = member end
    if not score or score <= now then held = 0 end
  end
  if #members == 0 or (held == 0 and all == '1') then
    return 0
  end
  return held * (1 + give_back(permits, timeout, members, asking, channel))
end

-- [update] ----------------------------------------------------------------------------------------

-- Sets a new lease for a permit, longer or shorter than before.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking    list: the waiting clients, `number:permits`, in order of arrival
-- id        the permit's id
-- lease_ms  how long the permit lasts from now
-- channel   where the waiters listen; the message is the number of free permits
-- Returns   1  set
--           0  its lease has expired, or the permit does not exist
--           text WRONGKIND: not a semaphore; nothing was changed

local function update(permits, timeout, asking, id, lease_ms, channel)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now = now_ms()
  reclaim(permits, timeout, asking, channel, now)
  local member, score = find(timeout, id)
  if not score or score <= now then
    return 0
  end
  redis.call('ZREM', timeout, '')
  redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), member)
  return 1
end

-- [remaining] -------------------------------------------------------------------------------------

-- Returns how much of a permit's lease remains.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- id       the permit's id
-- Returns  n   n ms remain
--          -1  the lease never ends: Redisson acquired the permit without a lease
--          -2  the lease has expired, or the permit does not exist
--          text WRONGKIND: not a semaphore

local function remaining(permits, timeout, id)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now = now_ms()
  local _, score = find(timeout, id)
  if not score or score <= now then
    return -2
  end
  return score < NEVER and score - now or -1
end

-- [counts] ----------------------------------------------------------------------------------------

-- Returns how many permits are free and how many are held. Permits with expired leases count as
-- free.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking   list: the waiting clients, `number:permits`, in order of arrival
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
  -- `reclaim` takes back a limited number at a time. The other permits with expired leases are
  -- free, too.
  local ended = redis.call('ZCOUNT', timeout, '-inf', now)
  local free = redis.call('GET', permits)
  local held = redis.call('ZCARD', timeout) - ended
  return { tonumber(free or 0) + ended, held, free and 1 or 0 }
end

-- [set] -------------------------------------------------------------------------------------------

-- Sets how many permits there are in total, and creates the semaphore if it does not exist.
--
-- permits  text: the number of free permits; negative when more are held than exist
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- asking   list: the waiting clients, `number:permits`, in order of arrival
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
  -- Permits that are in use count even if the number of free permits was removed.
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

-- [delete] ----------------------------------------------------------------------------------------

-- Removes the semaphore, and all permits that are held.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- Returns  1  removed
--          0  the semaphore did not exist
--          text WRONGKIND: not a semaphore; nothing was changed

local function delete(permits, timeout, marker, done)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  -- This first write succeeds even if the server is out of memory.
  redis.call('DEL', done)
  local exists = (free or redis.call('ZCARD', timeout) > 0) and 1 or 0
  local failed = remember(marker, exists)
  if failed then
    return failed
  end
  redis.call('DEL', permits, timeout)
  return exists
end
