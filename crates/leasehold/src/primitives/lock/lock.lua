-- A plain lock, and the Lua that other kinds of lock share with it. A line `-- [NAME]` begins a
-- section: a step, or Lua that several steps use.

-- [break_hold] ------------------------------------------------------------------------------------

-- Ends the current hold of a plain lock, and notes in `marker` which client ended it by force.
-- Returns 1 if there was a hold, 0 if not, or an error message.
local function break_hold(lock, marker, by)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return 0
  end
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  local holder = redis.call('HKEYS', lock)[1]
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- The note is only a courtesy to the holder, so it may fail when the server is out of memory.
    -- There are at most 64 notes, so that a name whose holds are often ended by force does not fill
    -- the memory.
    local size = redis.pcall('HLEN', marker)
    local noted = type(size) == 'number' and size < 64
      and redis.pcall('HSET', marker, holder, by)
    if type(noted) == 'number' and redis.call('PTTL', marker) < ttl then
      local expiry = redis.pcall('PEXPIRE', marker, ttl)
      if type(expiry) == 'table' then redis.pcall('DEL', marker) end
    end
  end
  return 1
end

-- [grant] -----------------------------------------------------------------------------------------

-- Takes back a lock that was just granted to this hold. The lock has one field, so HDEL and DEL both
-- remove it. An ACL may deny one of them.
local function ungrant(lock, hold)
  local gone = redis.pcall('HDEL', lock, hold)
  if type(gone) == 'table' then redis.call('DEL', lock) end
end
-- Grants a free lock to this hold, with a lease. Returns false, or an error message.
local function grant(lock, hold, lease_ms)
  redis.call('HSET', lock, hold, '1')
  local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
  if type(expiry) == 'table' then
    -- A lock without expiry would outlive its holder.
    ungrant(lock, hold)
    return expiry.err
  end
  return false
end

-- [acquire] ---------------------------------------------------------------------------------------

-- Grants the lock to this hold if it is free, with a lease.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long the hold lasts without renewal
-- Returns   nil  granted; a repeated request changes nothing
--           n    another hold has the lock for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock

local function acquire(lock, hold, lease_ms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES wrong_kind]]
      return wrong_kind('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- The first copy of this request set the lease, and a renewal may have lengthened the lease
    -- since then.
    return false
  end
  -- A copy of `grant`, without a function call, because a plain acquire must be cheap. The
  -- value is always 1: the client counts re-entries, and Redisson has no API that shows the value.
  redis.call('HSET', lock, hold, '1')
  local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
  if type(expiry) == 'table' then
    -- A lock without expiry would outlive its holder. The lock was free and has one field, so
    -- HDEL and DEL both remove it. An ACL may deny one of them.
    local gone = redis.pcall('HDEL', lock, hold)
    if type(gone) == 'table' then redis.call('DEL', lock) end
    return expiry.err
  end
  return false
end

-- [acquire_and_enlist] ----------------------------------------------------------------------------

-- Grants the lock to this hold if it is free. Otherwise adds the client to the list of waiting
-- clients. A release notifies one of these clients, and the others need not send a request.
--
-- lock      hash: one field per hold, `uuid:n`
-- asking    list: the clients to notify, each as `number:1`, in order of arrival
-- hold      this hold's field
-- lease_ms  how long the hold lasts without renewal
-- client    this client's item in `asking`
-- notified  1 if a release has notified this client, but another client was quicker
-- Returns   nil            granted; a repeated request changes nothing
--           { n, before }  another hold has the lock for n ms more, -1 without expiry; `before`
--                          clients are notified before this one, -1 if it is not in `asking`
--           text           WRONGKIND: not a plain lock

local function acquire_and_enlist(lock, asking, hold, lease_ms, client, notified)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    local refused = grant(lock, hold, lease_ms)
    if not refused then
      -- Notifying a client that has the lock would be useless, and would delay the next client.
      redis.pcall('LREM', asking, 0, client)
    end
    return refused
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    return false
  end
  --[[USES wrong_kind]]
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  return { redis.call('PTTL', lock), clients_before(asking, client, notified) }
end

-- [delist] ----------------------------------------------------------------------------------------

-- Removes a client from the list of clients to notify, because the client no longer waits.
--
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- client   this client's item in `asking`
-- Returns  n     the client was in the list n times
--          text  the list can't be changed

local function delist(asking, client)
  return redis.call('LREM', asking, 0, client)
end

-- [release] ---------------------------------------------------------------------------------------

-- Frees the lock if this hold still has it, and wakes the waiters.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1 + n  released, and n connections got the message
--          0      this hold's lease ran out; nothing was changed

local function release(lock, hold, channel)
  -- Use HDEL and not HINCRBY, because it works when the server is out of memory. The hash is
  -- deleted with its last field.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  -- Publish in the same script: if a client sent two commands and died between them, every waiter
  -- would sleep until its next poll. An ACL may deny the channel.
  local receivers = redis.pcall('PUBLISH', channel, '0')
  return 1 + (type(receivers) == 'number' and receivers or 0)
end

-- [release_and_notify] ----------------------------------------------------------------------------

-- Frees the lock as `release` does, and notifies one of the clients that wait for it.
--
-- lock     hash: one field per hold, `uuid:n`
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it, followed by the
--          number of the client that is notified
-- Returns  1 + n  released, and n connections got the message
--          0      this hold's lease ran out; nothing was changed

local function release_and_notify(lock, asking, hold, channel)
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  local receivers = redis.pcall('PUBLISH', channel, '0')
  if type(receivers) ~= 'number' or receivers == 0 then
    return 1
  end
  notify_first(asking, channel)
  return 1 + receivers
end

-- [renewed] ---------------------------------------------------------------------------------------

-- Makes the lock last for at least `lease_ms` from now, and returns its new remaining time. A lease
-- longer than `most_ms` is shortened to `lease_ms`, unless `most_ms` is 0.
local function renewed(lock, lease_ms, most_ms)
  local ttl, most = redis.call('PTTL', lock), tonumber(most_ms)
  -- Otherwise the lease is never shortened: an earlier request can arrive after a later one that
  -- asked for a longer lease, on which the holder relies.
  if ttl < tonumber(lease_ms) or (most > 0 and ttl > most) then
    ttl = tonumber(lease_ms)
  end
  -- Write even if nothing changes: a client that waits for replicas waits for this write.
  redis.call('PEXPIRE', lock, ttl)
  return ttl
end

-- [renew] -----------------------------------------------------------------------------------------

-- Renews this hold: it lasts for at least `lease_ms` from now.
--
-- lock      hash: one field per hold, `uuid:n`
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer has the lock, or its end is fixed; nothing was changed

local function renew(lock, hold, lease_ms, most_ms)
  return can_be_renewed(lock, hold) and renewed(lock, lease_ms, most_ms) or 0
end

-- [renew_many] ------------------------------------------------------------------------------------

-- Renews several holds: each lasts for at least a lease from now.
--
-- count      number of holds
-- first_key  index in KEYS of the first lock; each lock is a hash: one field per hold, `uuid:n`
-- first_arg  index in ARGV of the lease in ms, followed by the holds' fields
-- Returns    a list with the numbers, from 1, of the holds that must be renewed one by one: they
--            no longer exist, their end is fixed, or their key can't be read, has no expiry or
--            expires much later than the lease. Nothing was changed for them.

local function renew_many(count, first_key, first_arg)
  local lease_ms = ARGV[first_arg]
  local most, has_gt, renew_alone = tonumber(lease_ms), true, {}
  for n = 1, count do
    local lock = KEYS[first_key + n - 1]
    -- An error for one key must not stop the renewal of the others.
    local value = redis.pcall('HGET', lock, ARGV[first_arg + n])
    local good = type(value) == 'string' and value ~= KEPT
    if good then
      -- The lease is never shortened: an earlier request can arrive after a later one.
      local set = has_gt and redis.pcall('PEXPIRE', lock, lease_ms, 'GT')
      if set ~= 1 then
        -- An error means a server before 7.0, which does not know GT.
        has_gt = set == 0
        local ttl = redis.call('PTTL', lock)
        if ttl >= 0 then
          -- Write even if nothing changes: a client that waits for replicas waits for this write.
          redis.call('PEXPIRE', lock, math.max(ttl, most))
        end
        -- Renew the hold alone if its key has no expiry, or lasts more than a second longer than
        -- the lease because the server's clock was set back.
        good = ttl >= 0 and ttl <= most + 1000
      end
    end
    if not good then
      renew_alone[#renew_alone + 1] = n
    end
  end
  return renew_alone
end

-- [keep_for] --------------------------------------------------------------------------------------

-- Makes this hold end `span_ms` from now, even if that is sooner than before. No renewal changes
-- the end after that.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- span_ms  how long the hold lasts from now
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  set
--          0  this hold no longer has the lock; nothing was changed

local function keep_for(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- The waiters must send a request to learn the new end. The message contains no client's number,
  -- so each of them sends one. An ACL may deny the channel.
  if keep_for_span(span_ms, lock, hold) then
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end

-- [why_lost] --------------------------------------------------------------------------------------

-- Returns why a hold no longer exists.
--
-- lock    hash: one field per hold, `uuid:n`
-- marker  hash: a field per hold that was ended by force, with the label of the client that did it
-- hold    the lost hold
-- Returns { holder, note }  the current holder, or an empty string; the note in `marker` if the hold
--         was ended by force, else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- A lock has one field. Any other hash could be of any size.
  if redis.call('HLEN', lock) == 1 then
    holder = redis.call('HKEYS', lock)[1]
  end
  return { holder, redis.call('HGET', marker, hold) or 0 }
end

-- [force_unlock] ----------------------------------------------------------------------------------

-- Ends the current hold, and notes which client ended it by force.
--
-- lock     hash: one field per hold, `uuid:n`
-- marker   hash: a field per hold that was ended by force; lives as long as the
--          holds would have, so that their holders learn the reason
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- by       the label of the client that ends the hold
-- Returns  1  unlocked
--          0  the lock was free
--          text WRONGKIND: not a plain lock; nothing was changed

local function force_unlock(lock, marker, channel, by)
  local broken = break_hold(lock, marker, by)
  if broken == 1 then
    redis.pcall('PUBLISH', channel, '0')
  end
  return broken
end

-- [inspect] ---------------------------------------------------------------------------------------

-- Returns the holder of the lock, and how long its lease still lasts.
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

-- [note_longest] ----------------------------------------------------------------------------------

-- Returns the longest lease that was noted for this lock by clients that hold it as part of a
-- `RedLock`. Notes the client's own lease if that is longer.
--
-- longest  text: the longest lease, in ms; without expiry
-- own_ms   the longest lease of this client; 0 to note nothing
-- Returns  n    the longest lease that is noted now; 0 if none ever was
--          text WRONGKIND: not a number of ms

local function note_longest(longest, own_ms)
  local noted = redis.pcall('GET', longest) or '0'
  if type(noted) == 'table' then
    if not string.find(noted.err, 'WRONGTYPE', 1, true) then return noted.err end
    noted = ''
  end
  -- Lua's numbers are not exact above 2^53.
  if not string.match(noted, '^%d+$') or tonumber(noted) >= 9007199254740992 then
    return 'WRONGKIND a lock whose note of the longest lease (' .. longest .. ') is not a number of ms'
  end
  if tonumber(own_ms) > tonumber(noted) then
    redis.call('SET', longest, own_ms)
    noted = own_ms
  end
  return tonumber(noted)
end
