-- Tickets: a hold that passes from one process to another.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [taken] -----------------------------------------------------------------------------------------

-- Notes which hold has taken the place of `old`, so that the next caller with the same ticket
-- learns this. The note is only a courtesy, so it may fail: an ACL may deny it, and the key may
-- belong to another program. There are at most 64 notes, and they are kept for an hour.
local function note_taken(taken, old, hold)
  local size = redis.pcall('HLEN', taken)
  if type(size) ~= 'number' then
    return
  end
  if size >= 64 then redis.pcall('DEL', taken) end
  if type(redis.pcall('HSET', taken, old, hold)) == 'number' then
    local expiry = redis.pcall('PEXPIRE', taken, 3600000)
    -- Notes without an expiry would remain forever.
    if type(expiry) == 'table' then redis.pcall('DEL', taken) end
  end
end

-- Returns which hold has taken the place of `old`, or an empty string.
local function taken_by(taken, old)
  local by = redis.pcall('HGET', taken, old)
  return type(by) == 'string' and by or ''
end

-- Returns the reply for a hold that no longer exists.
local function gone(lock, marker, taken, old)
  local by, holder = taken_by(taken, old), ''
  -- A lock has few fields, except for readers. Any other hash could be of any size. Permits have no
  -- hash.
  local fields = redis.pcall('HLEN', lock)
  if by == '' and type(fields) == 'number' and fields < 64 then
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      if fields == 1 or string.find(field, ':write', 1, true) then holder = field end
    end
  end
  local note = redis.pcall('HGET', marker, old)
  return { 0, type(note) == 'string' and note or 0, by, holder }
end

-- [line] ------------------------------------------------------------------------------------------

-- Wakes the first waiters of a fair lock. Waking one is not enough: the first waiter may be dead,
-- and only the acquire of a later waiter removes it. An ACL may deny the channel.
local function wake_line(queue, channel)
  local waiters = redis.pcall('LRANGE', queue, 0, 63)
  if waiters.err then return end
  for _, waiter in ipairs(waiters) do
    redis.pcall('PUBLISH', channel .. ':' .. waiter, '0')
  end
end

-- [take] ------------------------------------------------------------------------------------------

-- Replaces the hold of a ticket with a new one, so that no other hold can begin in between. For the
-- locks with one holder: plain, fair and fenced ones, and the write side of a read-write lock.
--
-- lock        hash: one field per hold, `uuid:n`, or `uuid:n:write` for a write hold
-- counter     text: the last fencing token
-- marker      hash: a field per hold that was ended by force
-- taken       hash: the field of a hold that was replaced, with the one that has replaced it
-- queue       list: the waiters of a fair lock; the same key as `lock` for any other lock
-- old         the field of the ticket's hold
-- hold        the field of the new hold
-- lease_ms    how long the new hold lasts without renewal
-- channel     where the waiters listen; each waiter of a fair lock listens to this and `:uuid:n`
-- fenced      1 if the new hold gets a fencing token
-- counter_ms  how long the counter outlives its last use; 0 forever
-- writes      1 if it is a write hold
-- Returns   { 1, token }                replaced, with the new token or 0; a repeated request
--                                       changes nothing
--           { 0, note, by, holder }     the ticket's hold no longer exists; nothing was changed: the
--                                       note in `marker` if it was ended by force, else 0; the
--                                       hold that has replaced it; the current holder
--           text WRONGKIND: another kind of lock, or not a counter; nothing was changed

local function take(lock, counter, marker, taken, queue, old, hold, lease_ms, channel, fenced, counter_ms, writes)
  local fields = redis.call('HLEN', lock)
  local kind = writes == '1' and 'a read-write lock' or 'a plain lock'
  local other = wrong_kind(kind, lock, fields)
  if other then
    return other
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    -- While this hold exists, no other hold draws a token.
    local last = fenced == '1' and redis.call('GET', counter) or ''
    return { 1, tonumber(string.match(last, '^%d+$')) or 0 }
  end
  -- A late copy of the old hold's acquire can grant the old hold again after the ticket was used.
  if redis.call('HEXISTS', lock, old) == 0 or taken_by(taken, old) ~= '' then
    return gone(lock, marker, taken, old)
  end
  local token, wrong = 0, false
  if fenced == '1' then
    token, wrong = next_token(counter)
    if not token then
      return wrong
    end
  end
  local ttl, span = redis.call('PTTL', lock), tonumber(lease_ms)
  -- Read holds of the same owner inside a write hold may last longer.
  if fields > 2 then span = math.max(span, ttl) end
  -- The first command must be one that works when the server is out of memory. The server then runs
  -- the other commands, too.
  redis.call('PEXPIRE', lock, span)
  if fenced == '1' then note(counter, token, counter_ms) end
  -- Write the new field first, so that the lock is never free.
  redis.call('HSET', lock, hold, '1')
  redis.call('HDEL', lock, old)
  note_taken(taken, old, hold)
  -- The waiters sleep until the end of the hold that the server has reported to them, or forever.
  -- If the hold now ends earlier, they must ask the server again.
  if ttl < 0 or ttl > span then
    if queue == lock then
      wake_all(channel)
    else
      wake_line(queue, channel)
    end
  end
  return { 1, token }
end

-- [take_read] -------------------------------------------------------------------------------------

-- Replaces the read hold of a ticket with a new one, so that no writer can enter in between.
--
-- lock         hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--              `uuid:n:write`
-- old_timeout  the key of the ticket's hold, whose expiry is the end of its lease
-- timeout      the key of the new hold
-- marker       hash: a field per hold that was ended by force
-- taken        hash: the field of a hold that was replaced, with the one that has replaced it
-- old          the field of the ticket's hold
-- hold         the field of the new hold
-- lease_ms     how long the new hold lasts without renewal
-- channel      where the waiters listen
-- Returns   { 1, 0 }                    replaced; a repeated request changes nothing
--           { 0, note, by, holder }     as `take`
--           text WRONGKIND: another kind of lock; nothing was changed

local function take_read(lock, old_timeout, timeout, marker, taken, old, hold, lease_ms, channel)
  local fields = redis.call('HLEN', lock)
  local other = wrong_kind('a read-write lock', lock, fields)
  if other then
    return other
  end
  if redis.call('HEXISTS', lock, hold) == 1 and redis.call('EXISTS', timeout) == 1 then
    return { 1, 0 }
  end
  -- Without its own key the hold has ended, although its field still exists.
  if redis.call('HEXISTS', lock, old) == 0 or redis.call('EXISTS', old_timeout) == 0
    or taken_by(taken, old) ~= '' then
    return gone(lock, marker, taken, old)
  end
  local ttl, span = redis.call('PTTL', lock), tonumber(lease_ms)
  -- Other holds may last longer.
  if fields > 2 then span = math.max(span, ttl) end
  redis.call('PEXPIRE', lock, span)
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, hold, '1')
  redis.call('HDEL', lock, old)
  redis.call('DEL', old_timeout)
  note_taken(taken, old, hold)
  if ttl < 0 or ttl > span then wake_all(channel) end
  return { 1, 0 }
end

-- [take_permits] ----------------------------------------------------------------------------------

-- Replaces the permits of a ticket with new ones. Changes no count and sends no message, because no
-- permit becomes free.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- taken     hash: the id of a ticket's first permit, with the id of the permit that has replaced it
-- ids       the ids of the ticket's permits, one after the other
-- next      the ids of the new permits, the same number
-- lease_ms  how long the new permits last without renewal
-- old       the id of the ticket's first permit, in hex
-- hold      the id of the first new permit, in hex
-- Returns   { 1, 0 }            replaced; a repeated request changes nothing
--           { 0, 0, by, '' }    a permit of the ticket is no longer held, and nothing was changed:
--                               the permit that has replaced the first one
--           text WRONGKIND: not a semaphore; nothing was changed

local function take_permits(permits, timeout, taken, ids, next, lease_ms, old, hold)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  if redis.call('ZSCORE', timeout, string.sub(next, 1, 16)) then
    return { 1, 0 }
  end
  -- A late copy of the old permits' acquire can grant them again after the ticket was used.
  local by = taken_by(taken, old)
  if by ~= '' then
    return { 0, 0, by, '' }
  end
  local now, members = now_ms(), {}
  for at = 1, #ids, 16 do
    local member, score = find(timeout, string.sub(ids, at, at + 15))
    if not score or score <= now then
      return { 0, 0, '', '' }
    end
    members[#members + 1] = member
  end
  -- When the server is out of memory, it refuses ZADD unless the script has already written. ZREM
  -- is never refused, so this one, which removes nothing, lets the ZADD through. The new permits
  -- are added first: an ACL may deny ZADD, and permits that were removed but not counted would be
  -- lost forever.
  redis.call('ZREM', timeout, '')
  for at = 1, #next, 16 do
    redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), string.sub(next, at, at + 15))
  end
  redis.call('ZREM', timeout, unpack(members))
  note_taken(taken, old, hold)
  return { 1, 0 }
end

-- [look] ------------------------------------------------------------------------------------------

-- Returns what happened to the hold of a ticket.
--
-- lock    hash: one field per hold; the key of the permits, for a ticket of permits
-- marker  hash: a field per hold that was ended by force
-- taken   hash: a hold of a ticket, with the hold that has replaced it
-- old     the ticket's hold
-- Returns { 0, note, by, holder }  as `take`

local function look(lock, marker, taken, old)
  return gone(lock, marker, taken, old)
end
