-- A read-write lock.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [reservations] ----------------------------------------------------------------------------------

-- Reservations of waiting readers or writers, each with the time at which it ends. A reservation is
-- only a courtesy, so it may fail: when the server is out of memory, the reservation is not
-- written, and a key of another type does not keep any client out.

-- Makes or extends the reservation of `waiter`, so that it ends `reserve_ms` from now. Does nothing
-- if `reserve_ms` is 0.
local function reserve(reservations, waiter, reserve_ms)
  if reserve_ms == '0' then
    return
  end
  local now = now_ms()
  -- Remove the reservations of killed waiters. Otherwise these would live on, because each new
  -- reservation extends the life of the key.
  redis.pcall('ZREMRANGEBYSCORE', reservations, '-inf', now)
  local noted = redis.pcall('ZADD', reservations, now + reserve_ms, waiter)
  if type(noted) == 'number' then
    local expiry = redis.pcall('PEXPIRE', reservations, reserve_ms)
    -- A key without an expiry would remain forever.
    if type(expiry) == 'table' then redis.pcall('DEL', reservations) end
  end
end

-- Returns for how many ms the reservations keep other clients out.
local function reserved_for(reservations)
  local last = redis.pcall('ZREVRANGE', reservations, 0, 0, 'WITHSCORES')
  if last.err or not last[2] then
    return 0
  end
  return tonumber(last[2]) - now_ms()
end

-- [remaining] -------------------------------------------------------------------------------------

-- Returns how many ms the read hold `field` lasts; less than 0 if it has ended although its field
-- still exists. In Redisson a hold may be acquired several times (`count`), and there is a key for
-- each time, numbered from 1. The hold has ended when none of these keys exists. A key without
-- expiry lasts as long as the lock.
local function remaining_ms(lock, field, count)
  local stem = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local longest = -2
  -- No real hold is acquired 1000 times, and a count of a billion would block the server.
  for n = 1, math.min(count, 1000) do
    local ttl = redis.call('PTTL', stem .. ':' .. field .. ':rwlock_timeout:' .. n)
    if ttl == -1 then ttl = redis.call('PTTL', lock) end
    if ttl > longest then longest = ttl end
  end
  return longest
end

-- [trim_expiry] -----------------------------------------------------------------------------------

-- Adapts the hash to the remaining read holds, after a hold has ended. Sets the expiry of the hash
-- to the end of the longest read hold; if there is none, frees the lock and returns true. Removes
-- the fields of holds that have ended: otherwise they would accumulate in a lock that always has
-- readers.
local function trim_expiry(lock)
  local fields, longest = redis.call('HGETALL', lock), 0
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then
      local rest = remaining_ms(lock, fields[n], count)
      if rest > longest then
        longest = rest
      elseif rest < 0 then
        redis.call('HDEL', lock, fields[n])
      end
    end
  end
  if longest > 0 then
    redis.call('PEXPIRE', lock, longest)
    return false
  end
  redis.call('DEL', lock)
  return true
end

-- [longest_of_some] -------------------------------------------------------------------------------

-- Reads some of the lock's read holds, and returns the longest remaining time among them; 0 if all
-- of these have ended. Returns early once a hold has more than `enough` ms left. Reads only some
-- holds, because there may be thousands, and for each of them another key must be read.
local function longest_of_some(lock, enough)
  -- An ACL may deny the command. In that case all holds count as ended, and `trim_expiry` checks
  -- each of them.
  local some, longest = redis.pcall('HSCAN', lock, 0, 'COUNT', 64), 0
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then longest = math.max(longest, remaining_ms(lock, fields[n], count)) end
    if longest > enough then break end
  end
  return longest
end

-- [acquire_read] ----------------------------------------------------------------------------------

-- Grants the read side to this hold, with a lease, unless another owner holds the write side.
--
-- lock        hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--             `uuid:n:write`
-- timeout     this hold's own key, whose expiry is the end of its lease
-- writers     sorted set: our waiting writers, each with the end of its reservation
-- readers     sorted set: our readers that have waited for a long time, each with the end of its
--             reservation
-- hold        this hold's field
-- inside      the field of the write hold of the same owner, or an empty string
-- lease_ms    how long the hold lasts without renewal
-- yields      0: this reader ignores waiting writers; 1: it lets one of our waiting writers go
--             first, unless this reader has a reservation; 2: like 1, but it also reserves a
--             free lock
-- waiter      the id of the waiter in `readers`
-- reserve_ms  how long the reservation keeps our writers out; 0 for no reservation
-- Returns     nil  granted; a repeated request changes nothing
--             n    kept out for n ms more; -1 without expiry
--             text WRONGKIND: not a read-write lock

local function acquire_read(lock, timeout, writers, readers, hold, inside, lease_ms, yields, waiter, reserve_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a read-write lock', lock, fields, mode)
    if other then
      return other
    end
  end
  if mode and redis.call('HEXISTS', lock, hold) == 1 and redis.call('EXISTS', timeout) == 1 then
    -- The first copy of this request set the lease, and a renewal may have lengthened the lease
    -- since then.
    return false
  end
  if mode == 'write' then
    if inside == '' or redis.call('HEXISTS', lock, inside) == 0 then
      -- If this reader has waited for a long time (`reserve_ms` is not 0), it makes a reservation,
      -- which keeps our next writers out until the reader has entered.
      reserve(readers, waiter, reserve_ms)
      return redis.call('PTTL', lock)
    end
  elseif reserve_ms ~= '0' and redis.pcall('ZREM', readers, waiter) == 1 then
    -- This reader has a reservation, so it enters before the next writer.
  elseif yields ~= '0' then
    local rest = reserved_for(writers)
    if rest > 0 then
      -- While other readers hold the lock, this reader makes no reservation and lets at least one
      -- writer go first. That writer waits for those readers, and would otherwise never enter.
      -- While the lock is free, this reader sends its next request soon: a living writer enters at
      -- once, but the reservation of a dead writer may last for several seconds. For a while, this
      -- reader lets quicker writers overtake it. After that (`yields` is 2), it also makes its
      -- reservation here.
      if not mode and reserve_ms ~= '0' then
        if yields == '2' then reserve(readers, waiter, reserve_ms) end
        rest = math.min(rest, 50)
      end
      return rest
    end
  end
  -- Write the hold's own key first: a field without its key is not a hold.
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', mode or 'read', hold, '1')
  local ttl = redis.call('PTTL', lock)
  -- Never shorten the expiry: other holds rely on it. If another program has removed the lock's
  -- expiry, the lock remains without one.
  if not mode or (ttl >= 0 and ttl < tonumber(lease_ms)) then
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      redis.pcall('DEL', timeout)
      local gone = mode and redis.pcall('HDEL', lock, hold) or redis.pcall('DEL', lock)
      if type(gone) == 'table' then
        redis.call('HDEL', lock, 'mode', hold)
      end
      return expiry.err
    end
  end
  return false
end

-- [acquire_write] ---------------------------------------------------------------------------------

-- Grants the lock to this hold alone, with a lease, if the lock is free. Otherwise makes a
-- reservation for the waiting writer.
--
-- lock        hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--             `uuid:n:write`
-- writers     sorted set: our waiting writers, each with the end of its reservation
-- readers     sorted set: our readers that have waited for a long time, each with the end of its
--             reservation; they enter before this writer
-- asking      list: the clients to notify, each as `number:1`, in order of arrival
-- hold        this hold's field
-- lease_ms    how long the hold lasts without renewal
-- waiter      the id of the waiter in `writers`
-- reserve_ms  how long the reservation keeps our new readers out; 0 for no reservation
-- client      this client's item in `asking`; empty if no release notifies it
-- notified    1 if a release has notified this client, but another client was quicker
-- Returns     nil            granted; a repeated request changes nothing
--             { n, before }  kept out for n ms more, -1 without expiry; `before` clients are
--                            notified before this one, -1 if it is not in `asking`
--             text           WRONGKIND: not a read-write lock

local function acquire_write(lock, writers, readers, asking, hold, lease_ms, waiter, reserve_ms, client, notified)
  local mode = redis.call('HGET', lock, 'mode')
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a read-write lock', lock, fields, mode)
    if other then
      return other
    end
  end
  local wait = redis.call('PTTL', lock)
  if mode == 'read' and wait > 0 and fields > 64 then
    -- With more than 64 fields, the lock may still have the expiry of a reader that has released it
    -- (`release_read`). If the other readers are dead, this writer would wait although there is
    -- no live hold.
    --[[USES longest_of_some]]
    wait = longest_of_some(lock, math.huge)
    if wait == 0 then
      mode = not trim_expiry(lock) and mode
      wait = redis.call('PTTL', lock)
    end
  end
  -- If the lock is free, readers with a reservation go first.
  local reserved = mode and 0 or reserved_for(readers)
  if reserved > 0 then
    wait = reserved
  elseif not mode then
    redis.call('HSET', lock, 'mode', 'write', hold, '1')
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      local gone = redis.pcall('DEL', lock)
      if type(gone) == 'table' then redis.call('HDEL', lock, 'mode', hold) end
      return expiry.err
    end
    -- This writer has entered. Its reservation would keep readers out after its release.
    if reserve_ms ~= '0' then redis.pcall('ZREM', writers, waiter) end
    -- Notifying a client that has the lock would be useless, and would delay the next client.
    if client ~= '' then redis.pcall('LREM', asking, 0, client) end
    return false
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    -- The first copy of this request set the lease, and a renewal may have lengthened the lease
    -- since then.
    return false
  end
  reserve(writers, waiter, reserve_ms)
  return { wait, client ~= '' and clients_before(asking, client, notified) or -1 }
end

-- [withdraw] --------------------------------------------------------------------------------------

-- Withdraws the reservation of a waiter that no longer waits.
--
-- reservations  sorted set: our waiting writers or readers, each with the end of its reservation
-- waiter        the id of the waiter in `reservations`
-- channel       where the waiters listen: those that only the reservation kept out may enter now
-- Returns       1  withdrawn
--               0  there was no reservation

local function withdraw(reservations, waiter, channel)
  local gone = redis.call('ZREM', reservations, waiter)
  -- Wake the waiters only when no reservation remains: another reservation would still keep them
  -- out.
  if gone == 1 and redis.call('EXISTS', reservations) == 0 then
    wake_all(channel)
  end
  return gone
end

-- [release_read] ----------------------------------------------------------------------------------

-- Ends this read hold. If it was the last one, wakes the waiters and notifies one of our writers.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- timeout  this hold's own key, whose expiry is the end of its lease
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  released
--          0  this hold's lease had run out

local function release_read(lock, timeout, asking, hold, channel)
  -- Use HDEL and DEL, and not HINCRBY, because they work when the server is out of memory.
  local existed = redis.call('HDEL', lock, hold)
  local held = redis.call('DEL', timeout)
  if existed == 0 then
    return 0
  end
  local fields = redis.call('HLEN', lock)
  -- If a write hold exists beside the read holds, the lock has the expiry of the write hold. (Even
  -- in this case, Redisson sets it to the expiry of the longest read hold, and so cuts the write
  -- hold short.)
  if fields > 1 and redis.call('HGET', lock, 'mode') == 'write' then
    return held
  end
  -- If each of thousands of releases checked all readers, the work would be quadratic. It would
  -- keep the server busy for several seconds when many readers release at the same time. So with
  -- more than 64 fields, only one release in `fields` / 64 checks all readers, chosen by the time
  -- and the hold's number. Until then the lock expires later than necessary, which does no harm
  -- while there are live readers. But the other readers may all be dead, and then a writer would
  -- wait although there is no live hold. So each release checks a few readers.
  if fields > 64 then
    local sample = redis.call('TIME')[2] + (tonumber(string.match(hold, '%d+$')) or 0)
    if sample % fields >= 64 and longest_of_some(lock, 0) > 0 then
      return held
    end
  end
  if trim_expiry(lock) then
    local receivers = redis.pcall('PUBLISH', channel, '0')
    if type(receivers) == 'number' and receivers > 0 then notify_first(asking, channel) end
  end
  return held
end

-- [release_write] ---------------------------------------------------------------------------------

-- Ends this write hold. Wakes all waiters except our writers, and notifies one of our writers. Read
-- holds that the owner has inside this hold remain, and other readers may enter beside them. In
-- that case none of our writers is notified.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen. Redisson publishes nothing there if read holds remain,
--          and its own readers then wait for the expiry.
-- Returns  1 + n  released, and n connections got the message
--          0      this hold no longer has the lock; nothing was changed

local function release_write(lock, asking, hold, channel)
  -- HDEL is first: it works when the server is out of memory, and the server then runs the other
  -- commands, too.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  if redis.call('HLEN', lock) > 1 then
    redis.call('HSET', lock, 'mode', 'read')
  end
  local is_free = trim_expiry(lock)
  local receivers = wake_all(channel)
  -- Notify the first client right after those messages: clients in `asking` ignore them and wait
  -- for their number.
  if is_free and receivers > 0 then notify_first(asking, channel) end
  return 1 + receivers
end

-- [renew_read] ------------------------------------------------------------------------------------

-- Renews this read hold and the lock: both last for at least `lease_ms` from now.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- timeout   this hold's own key, whose expiry is the end of its lease
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock; nothing was changed

local function renew_read(lock, timeout, hold, lease_ms, most_ms)
  local ttl, most = redis.call('PTTL', timeout), tonumber(most_ms)
  -- Without its own key the hold has ended, here and in Redisson, although its field still exists.
  if ttl == -2 or redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- Otherwise the lease is never shortened: an earlier request can arrive after a later one that
  -- asked for a longer lease, on which the holder relies.
  if ttl < tonumber(lease_ms) or (most > 0 and ttl > most) then
    ttl = tonumber(lease_ms)
  end
  -- Write even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', timeout, ttl)
  -- The lock must not expire before any of its holds. Another hold may need a longer expiry, so
  -- only a hold that is alone shortens the expiry. (Redisson sets the expiry to the renewed hold's
  -- timeout.)
  local lock_ttl = redis.call('PTTL', lock)
  local alone = redis.call('HLEN', lock) == 2
  if (lock_ttl >= 0 and lock_ttl < ttl) or (alone and (lock_ttl == -1 or (most > 0 and lock_ttl > most))) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return ttl
end

-- [renew_write] -----------------------------------------------------------------------------------

-- Renews this write hold: it lasts for at least `lease_ms` from now.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock, or its end is fixed; nothing was changed

local function renew_write(lock, hold, lease_ms, most_ms)
  if not can_be_renewed(lock, hold) then
    return 0
  end
  local ttl, most = redis.call('PTTL', lock), tonumber(most_ms)
  -- The lease is not shortened if the owner has a read hold inside this one, which may last longer.
  -- If there are two fields, they are `mode` and this hold.
  local too_long = most > 0 and ttl > most and redis.call('HLEN', lock) == 2
  if ttl < tonumber(lease_ms) or too_long then
    ttl = tonumber(lease_ms)
  end
  -- Write even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', lock, ttl)
  return ttl
end

-- [keep_write] ------------------------------------------------------------------------------------

-- Makes this write hold end `span_ms` from now, even if that is sooner than before. No renewal
-- changes the end after that. If the owner also has a read hold inside this write hold, the hash
-- must last as long as the read hold. In that case the write hold ends at once, as in
-- `release_write`.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- hold     this hold's field
-- span_ms  how long the hold lasts from now
-- channel  where the waiters listen
-- Returns  1   set
--          0   this hold no longer has the lock; nothing was changed
--          -1  the owner has a read hold inside the write hold: the write hold has been ended

local function keep_write(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local fields = redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local field = fields[n]
    local count = field ~= 'mode' and field ~= hold and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count and remaining_ms(lock, field, count) >= 0 then
      redis.call('HDEL', lock, hold)
      redis.call('HSET', lock, 'mode', 'read')
      trim_expiry(lock)
      wake_all(channel)
      return -1
    end
  end
  -- The waiters must send a request to learn the new end.
  if keep_for_span(span_ms, lock, hold) then
    wake_all(channel)
  end
  return 1
end

-- [downgrade] -------------------------------------------------------------------------------------

-- Replaces a write hold with a read hold, so that no other hold can begin in between, and wakes all
-- waiters.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- timeout   the read hold's own key, whose expiry is the end of its lease
-- hold      the write hold's field
-- read      the read hold's field
-- lease_ms  how long the read hold lasts without renewal
-- channel   where the waiters listen
-- Returns   1  done; a repeated request changes nothing
--           0  the write hold no longer exists; nothing was changed

local function downgrade(lock, timeout, hold, read, lease_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    local ttl = redis.call('HEXISTS', lock, read) == 1 and redis.call('PTTL', timeout) or 0
    -- Write even if nothing changes: a client that waits for replicas waits for this write.
    return ttl > 0 and redis.call('PEXPIRE', timeout, ttl) or 0
  end
  -- The first command must be one that works when the server is out of memory. The server then runs
  -- the other commands, too. The lock lasts long enough for both holds until `trim_expiry` sets its
  -- end.
  local ttl = redis.call('PTTL', lock)
  redis.call('PEXPIRE', lock, math.max(ttl, tonumber(lease_ms)))
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', 'read', read, '1')
  redis.call('HDEL', lock, hold)
  trim_expiry(lock)
  -- Redisson itself publishes nothing at a downgrade, so its own readers wait for the expiry.
  wake_all(channel)
  return 1
end

-- [upgrade] ---------------------------------------------------------------------------------------

-- Grants the write lock to a holder of the read lock if there are no other readers. The read hold
-- remains, inside the new write hold.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- hold      the write hold's field
-- read      the read hold's field
-- lease_ms  how long the write hold lasts without renewal
-- Returns   nil  granted; a repeated request changes nothing
--           n    there are other readers, or the read hold does not exist, and the lock lasts for
--                n ms more; -1 without expiry
--           text WRONGKIND: not a read-write lock

local function upgrade(lock, hold, read, lease_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  if mode == 'write' and redis.call('HEXISTS', lock, hold) == 1 then
    return false
  end
  local ttl = redis.call('PTTL', lock)
  local fields = redis.call('HGETALL', lock)
  local alone, mine = mode == 'read', false
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if alone and count and remaining_ms(lock, fields[n], count) >= 0 then
      mine = mine or fields[n] == read
      alone = fields[n] == read
    end
  end
  if not alone or not mine then
    -- If the lock no longer exists, the reply is 0: a negative number would mean a lock without
    -- expiry.
    return ttl == -2 and 0 or ttl
  end
  -- Remove the fields of dead readers, which would look like read holds inside the new write hold.
  for n = 1, #fields, 2 do
    if fields[n] ~= 'mode' and fields[n] ~= read then redis.call('HDEL', lock, fields[n]) end
  end
  if ttl < tonumber(lease_ms) then redis.call('PEXPIRE', lock, lease_ms) end
  redis.call('HSET', lock, 'mode', 'write', hold, '1')
  return false
end

-- [why_lost] --------------------------------------------------------------------------------------

-- Returns why a hold no longer exists.
--
-- lock    hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--         `uuid:n:write`
-- marker  hash: a field per hold that was ended by force, with the label of the client that did it
-- hold    the lost hold
-- Returns { holder, note }  the current writer, or an empty string; the note in `marker` if the hold
--         was ended by force, else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- A lock with a writer has no read holds except the writer's own. Without a writer there may be
  -- thousands of readers.
  if redis.call('HGET', lock, 'mode') == 'write' and redis.call('HLEN', lock) < 64 then
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      if field ~= hold and string.find(field, ':write', 1, true) then holder = field end
    end
  end
  return { holder, redis.call('HGET', marker, hold) or 0 }
end

-- [force_unlock] ----------------------------------------------------------------------------------

-- Ends all holds of one side, read or write, and notes which client ended them by force.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- marker   hash: a field per hold that was ended by force; lives as long as the
--          holds would have, so that their holders learn the reason
-- side     read or write
-- channel  where the waiters listen
-- by       the label of the client that ends the holds
-- Returns  1  unlocked
--          0  the lock was free, or the other side has it
--          text WRONGKIND: not a read-write lock; nothing was changed

local function force_unlock(lock, marker, side, channel, by)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  if mode ~= side then
    return 0
  end
  local holders = redis.call('HKEYS', lock)
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- The notes are only a courtesy to the holders, so they may fail when the server is out of
    -- memory. There are at most 4096 notes, so that a name whose holds are often ended by force
    -- does not fill the memory.
    local size = redis.pcall('HLEN', marker)
    local room = type(size) == 'number' and 4096 - size or 0
    for n = 1, math.min(#holders, room) do
      if holders[n] ~= 'mode' and type(redis.pcall('HSET', marker, holders[n], by)) == 'table' then
        break
      end
    end
    if room > 0 and redis.call('PTTL', marker) < ttl then
      local expiry = redis.pcall('PEXPIRE', marker, ttl)
      if type(expiry) == 'table' then redis.pcall('DEL', marker) end
    end
  end
  if side == 'write' then
    wake_all(channel)
  else
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end

-- [inspect] ---------------------------------------------------------------------------------------

-- Returns the holders of one side, read or write, and the time until the lock expires. Omits read
-- holds that have ended, although their fields still exist.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- side     read or write; an owner that writes and also reads is a holder of both
-- Returns  { ttl, holder, count, ... }  ttl in ms, -1 without expiry
--          { -2 }                       no holders
--          text WRONGKIND: not a read-write lock

local function inspect(lock, side)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  local reply = { redis.call('PTTL', lock) }
  if mode == 'write' or mode == side then
    local fields = redis.call('HGETALL', lock)
    for n = 1, #fields, 2 do
      local field, count = fields[n], tonumber(string.match(fields[n + 1], '^%d+$'))
      local writes = string.find(field, ':write', 1, true) ~= nil
      if field ~= 'mode' and count and writes == (side == 'write')
        and (writes or remaining_ms(lock, field, count) >= 0) then
        reply[#reply + 1] = field
        reply[#reply + 1] = fields[n + 1]
      end
    end
  end
  return #reply > 1 and reply or { -2 }
end
