-- Lua that the steps of several primitives use.
-- A line `-- [NAME]` begins a section.

-- [now_ms] ----------------------------------------------------------------------------------------

-- Returns the server's clock in ms. The time does not change during a call, and `call.lua` may have
-- read it already.
local function now_ms()
  time = time or redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- [number_at] -------------------------------------------------------------------------------------

-- Returns the number at `key`; nil if the key does not exist; nil and an error message if the key
-- holds anything else.
local function number_at(key)
  local text = redis.pcall('GET', key)
  if not text then
    return nil
  end
  if type(text) == 'table' then
    if string.find(text.err, 'WRONGTYPE', 1, true) then
      return nil, 'WRONGKIND a ' .. redis.call('TYPE', key).ok
    end
    return nil, text.err
  end
  -- With more digits, Lua does not convert a number back to a string exactly.
  if #text > 14 or not string.match(text, '^-?%d+$') then
    return nil, 'WRONGKIND a text that is not a count'
  end
  return tonumber(text)
end

-- [idempotency] -----------------------------------------------------------------------------------

-- Stores the reply to a request under its marker. A repeated request then changes nothing, because
-- a step with a marker first checks whether the marker exists. Returns false, or an error message.
local function remember(marker, reply)
  return redis.pcall('SET', marker, reply, 'PX', 60000).err or false
end

-- [hash_kind] -------------------------------------------------------------------------------------

-- The id of a hold, in this library and in Redisson: the random UUID of its client, a colon, and a
-- number.
local ID = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:.'

-- Returns which kind of lock the hash `name` is, according to its fields. Each field contains the
-- id of a hold, except `mode`, which marks a read-write lock. Any other hash belongs to another
-- program, and no step may change it. So every step that could change a hash calls this function
-- first.
local function kind_of_hash(name, fields, mode)
  -- If the hash has a single field, `mode` need not be read: a read-write lock has `mode` and at
  -- least one hold. This saves a command each time that a plain lock is refused.
  if fields > 1 and mode == nil then
    mode = redis.call('HGET', name, 'mode')
  end
  local all = fields <= 64 and redis.call('HGETALL', name)
  if all and all[1] == 'mode' then
    mode = all[2]
  end
  local kind = fields == 1 and 'a plain lock' or 'a group lock'
  if mode == 'read' or mode == 'write' then
    kind = 'a read-write lock'
  end
  -- In a large hash, only a few fields are read: reading all of them at each request would keep the
  -- server busy. A read-write lock may have thousands of readers, and its mode is enough.
  all = all or kind == 'a read-write lock' and {} or redis.call('HSCAN', name, 0, 'COUNT', 8)[2]
  for n = 1, #all, 2 do
    local field, value = all[n], all[n + 1]
    local id, number = field, '^%d+$'
    if kind == 'a group lock' then
      -- A group lock has three fields for each value. The value's own field contains the id of its
      -- holder. The other two fields have that id in their names, and contain numbers.
      id, number = string.match(field, '^[^:]+:(.+):expire_time$'), '^%-?%d+$'
      id = id or string.match(field, '^[^:]+:(.+):lock_count$')
      if not id then id, number = value, '' end
    end
    local fits = string.find(id, ID) and string.find(value, number)
    if not fits and (field ~= 'mode' or kind ~= 'a read-write lock') then
      return 'a hash that is not a lock'
    end
  end
  return kind
end

-- Returns an error message if the hash is not a lock of this `kind`; false if it is one or if it
-- has no fields.
local function wrong_kind(kind, name, fields, mode)
  local found = fields > 0 and kind_of_hash(name, fields, mode) or kind
  return found ~= kind and 'WRONGKIND ' .. found
end

-- [kept] ------------------------------------------------------------------------------------------

-- The value of a hold's field once `keep_for_span` has fixed the end of the hold. As a number it is
-- still 1. As a string it differs from 1, so a renewal that arrives late does not lengthen the
-- hold.
local KEPT = '01'

-- Returns whether this hold still has the lock and can be renewed.
local function can_be_renewed(lock, hold)
  local count = redis.call('HGET', lock, hold)
  return count and count ~= KEPT
end

-- Makes this hold end in `span_ms`. Returns whether that is sooner than before. If it is, the
-- waiters must be notified, because they sleep until the end that they last learned, or forever.
local function keep_for_span(span_ms, lock, hold)
  local ttl = redis.call('PTTL', lock)
  -- `PEXPIRE` is first, because it works when the server is out of memory. After the first write of
  -- a script, the server allows the other writes, too.
  redis.call('PEXPIRE', lock, span_ms)
  redis.call('HSET', lock, hold, KEPT)
  return ttl < 0 or ttl > tonumber(span_ms)
end

-- [publish_free] ----------------------------------------------------------------------------------

-- Notifies up to `most` clients, in the order of the list. A client is skipped if it wants more
-- permits than are free. The message to a client is its number, on the client's own channel.
-- Returns how many clients count as notified; 0 if the list is empty or an ACL denies a message.
-- Any command on the list may fail: an ACL may deny it, and the key may belong to another program.
local function notify_waiting(asking, channel, free, most)
  local notified, denied, some, at = 0, false, false, 0
  repeat
    local waiting = redis.pcall('LRANGE', asking, at, at + 99)
    some, at = some or #waiting > 0, at + #waiting
    for _, client in ipairs(waiting) do
      if notified >= most or free <= 0 then break end
      local number, wants = string.match(client, '^(%d+):(%d+)$')
      if number and tonumber(wants) <= free then
        local removed = redis.pcall('LREM', asking, 1, client)
        at = at - (type(removed) == 'number' and removed or 0)
        local receivers = redis.pcall('PUBLISH', channel .. ':' .. number, number)
        denied = denied or type(receivers) ~= 'number'
        -- A client that has disconnected does not get the message. In that case the next client is
        -- notified.
        if not denied and receivers > 0 then notified, free = notified + 1, free - wants end
      end
    end
    -- A client that wants few permits may be in the list after many clients that want more.
  until #waiting < 100 or notified >= most or free <= 0
  -- If an ACL denied a message, all clients must send a request.
  if denied then
    return 0
  end
  -- If every client in the list wants more permits than are free, one client counts as notified, so
  -- that not all of them send a request.
  return notified == 0 and some and 1 or notified
end

-- Publishes how many permits are free, after `more` permits have become free. Returns how many
-- connections got the message; -1 if that can't be known.
--
-- In the first message, the number has one leading zero for each client of this library that was
-- notified. Redisson reads the same number. A client of this library that sees zeros sends a
-- request only if it was notified. Redisson wakes as many threads as the number says, but only one
-- asynchronous waiter for each message. So there is one message for each permit and `extra` more,
-- at most 64 in all. If no connection got the first message, the others are not sent. Redisson
-- fails on a negative number. An ACL may deny the channel.
local function publish_free(asking, channel, free, more, extra)
  if free <= 0 then
    return -1
  end
  local notified = notify_waiting(asking, channel, free, math.min(more, 64))
  local listeners = redis.pcall('PUBLISH', channel, string.rep('0', notified) .. free)
  if listeners == 0 then
    return 0
  end
  for _ = 2, math.min(more + extra, 64) do redis.pcall('PUBLISH', channel, '0') end
  return type(listeners) == 'number' and listeners or -1
end

-- [asking] ----------------------------------------------------------------------------------------

-- The list of clients that wait for a lock, in order of arrival. An item is the client's number,
-- which a release publishes to notify the client. `:1` follows if the client also subscribes to its
-- own channel. Every command on the list may fail: an ACL may deny it, the key may belong to
-- another program, or there may be no memory for it. If such a command fails, no client is notified
-- by its number, and each client sends a request at each message.

-- Returns the number of a client and the rest of its item; nil if the item is not one of ours.
local function client_of(item)
  if type(item) == 'string' then
    return string.match(item, '^(%d%d%d+)(:?%d*)$')
  end
end

-- Adds a waiting client. Returns how many clients are before it; false if it was not added.
local function enlist(asking, client, notified)
  local length = redis.pcall('LLEN', asking)
  -- Killed clients may fill the list during a long hold. A full list expires once none of its
  -- clients sends requests any more.
  if type(length) ~= 'number' or length >= 1000 then
    return false
  end
  if length > 0 and not client_of(redis.pcall('LINDEX', asking, 0)) then
    return false
  end
  if notified == '1' then
    return type(redis.pcall('LPUSH', asking, client)) == 'number' and 0
  end
  length = redis.pcall('RPUSH', asking, client)
  return type(length) == 'number' and length - 1
end

-- Returns how many clients are notified before this waiting client; -1 if this client is not in the
-- list. `notified` is 1 if a release has notified this client, but another client was quicker.
local function clients_before(asking, client, notified)
  local before = redis.pcall('LPOS', asking, client)
  if not before then
    before = enlist(asking, client, notified)
  end
  if type(before) ~= 'number' then
    -- A list that belongs to another program gets no expiry.
    return -1
  end
  -- Each waiter sends a request at least every ten seconds. A list expires once its clients send no
  -- more requests.
  local expiry = redis.pcall('PEXPIRE', asking, 12000)
  if type(expiry) == 'table' then
    -- A list without an expiry would remain forever.
    redis.pcall('DEL', asking)
    return -1
  end
  return before
end

-- Notifies the first client that is still subscribed. This runs right after a release has published
-- `0`.
local function notify_first(asking, channel)
  while true do
    local number, listens = client_of(redis.pcall('LINDEX', asking, 0))
    if not number or type(redis.pcall('LPOP', asking)) ~= 'string' then
      return
    end
    -- A killed client is no longer subscribed. If it were notified, the others would wait for it.
    local subscribers = listens ~= '' and redis.pcall('PUBSUB', 'NUMSUB', channel .. ':' .. number)
    if not subscribers or subscribers[2] ~= 0 then
      -- Redisson reads a number from each message, and ignores any number other than 0 and 1.
      redis.pcall('PUBLISH', channel, number)
      return
    end
  end
end

-- [wake_all] --------------------------------------------------------------------------------------

-- Wakes all waiters, no matter what they wait for. Redisson's threads learn of a release only from
-- messages, so a step that may let in several waiters sends three messages. `1` wakes each sleeping
-- thread. A thread that has just been refused and does not sleep yet would miss the `1`, and sleep
-- for the rest of a lease. `0` wakes one thread of each process; if none sleeps, Redisson saves the
-- `0` for the next thread that is about to sleep. Redisson 3.16.8 may handle a `0` before the `1`.
-- In that case a sleeping thread consumes the first `0`, and the second is saved. An ACL may deny
-- the channel. Returns how many connections got the message.
local function wake_all(channel)
  local receivers = redis.pcall('PUBLISH', channel, '1')
  redis.pcall('PUBLISH', channel, '0')
  redis.pcall('PUBLISH', channel, '0')
  return type(receivers) == 'number' and receivers or 0
end
