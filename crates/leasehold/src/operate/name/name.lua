-- Names of any kind.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [inspect] ---------------------------------------------------------------------------------------

-- The length to which a field, a member or an entry is cut. Ids are never longer, but another
-- program's data may be.
local LONGEST = 128
-- Redisson's expiry for a permit that never ends.
local NEVER = 922337203685477

local function is_a(key, kind)
  return redis.call('TYPE', key).ok == kind
end

local function cut(text)
  return string.sub(text or '', 1, LONGEST)
end

-- Returns the beginning of a string. A number is never longer than 32 bytes.
local function short_text(key)
  return is_a(key, 'string') and redis.call('GETRANGE', key, 0, 31) or ''
end

-- Returns whether a group stores this field next to the field of a value.
local function is_beside(field)
  return string.find(field, ':expire_time$') or string.find(field, ':lock_count$')
end

-- Describes a field. If it is a read hold, adds how long the hold lasts. If it is a value of a
-- group, adds the two fields next to it.
local function hold_of(name, mode, field, value)
  local count, ends, stored_count = tonumber(string.match(value, '^%d+$')), '', ''
  if not mode and not count and #value <= LONGEST then
    ends = redis.call('HGET', name, field .. ':' .. value .. ':expire_time')
    stored_count = redis.call('HGET', name, field .. ':' .. value .. ':lock_count')
  end
  local left = mode and count and remaining_ms(name, field, count) or -2
  return { cut(field), cut(value), left, cut(ends), cut(stored_count) }
end

local function holds_of(name, mode, most)
  local holds, seen, read, cursor = {}, {}, 0, '0'
  repeat
    -- A group has three fields for each value, so one page might not be enough.
    local page = redis.call('HSCAN', name, cursor, 'COUNT', most)
    cursor = page[1]
    for n = 1, #page[2], 2 do
      local field = page[2][n]
      read = read + 1
      if #holds < most and field ~= 'mode' and not seen[field] and (mode or not is_beside(field)) then
        seen[field] = true
        holds[#holds + 1] = hold_of(name, mode, field, page[2][n + 1])
      end
    end
  until cursor == '0' or #holds >= most or read >= 4 * most
  return holds
end

local function permits_of(leases, now, most)
  local after = string.format('(%.0f', now)
  local some = redis.call('ZRANGEBYSCORE', leases, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local permits = {}
  for n = 1, #some, 2 do
    permits[#permits + 1] = { cut(some[n]), math.min(tonumber(some[n + 1]), NEVER) }
  end
  return permits
end

local function line_of(queue, waiters, most)
  local line = {}
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, most - 1)) do
    local alive_until = is_a(waiters, 'zset') and redis.call('ZSCORE', waiters, waiter)
    line[#line + 1] = { cut(waiter), math.min(tonumber(alive_until) or 0, NEVER) }
  end
  return line
end

-- Returns the waiters whose reservations have not ended.
local function reserving_waiters(reservations, now, most)
  local some = {}
  if is_a(reservations, 'zset') then
    local after = string.format('(%.0f', now)
    some = redis.call('ZRANGEBYSCORE', reservations, after, '+inf', 'LIMIT', 0, most)
  end
  for n = 1, #some do
    some[n] = cut(some[n])
  end
  return some
end

-- Returns how many connections subscribe to the channel; -1 if the server does not report it.
local function listeners(channel)
  local subscribers = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return type(subscribers[2]) == 'number' and subscribers[2] or -1
end

-- Describes the key of a name, whatever its type, and the name's auxiliary keys.
--
-- name     the key itself
-- leases   sorted set: the permits in use, each with the end of its lease in ms
-- queue    list: the waiters for a fair lock
-- waiters  sorted set: our waiters in that list, each with the time until which it counts as
--          alive, in ms
-- writers  sorted set: the writers that wait for a read-write lock, each with the end of its
--          reservation
-- readers  sorted set: the readers that have waited for it for a long time, each with the end of
--          its reservation
-- tokens   text: the fencing token that was given last
-- opened   text: the time at which a latch was last open
-- most     the most holds, permits and waiters that are shown
-- locks    the channel on which a release of a lock is published
-- sides    the channel on which a release of a read-write lock is published
-- frees    the channel on which the free permits of a semaphore are published
-- opens    the channel on which the opening of a latch is published
-- Returns  { type, ttl, now, text, hash_kind, size, fields, held, over, permits, length, waiting,
--          writers, readers, token, opened, listening }
--          text       the content, if the key is a string
--          hash_kind  the kind of lock, if it is a hash
--          size       the number of fields, if it is a hash
--          fields     { field, value, remaining ms of a read hold, end, count }; end and count
--                     if it is a group's value
--          held       how many permits are in `leases`
--          over       how many of these have ended
--          permits    { id, end }
--          length     the length of the queue
--          waiting    { id, end }; end is when the place ends, 0 for a waiter of Redisson
--          writers, readers  ids
--          opened     1 if that key exists
--          listening  how many connections subscribe to each of the four channels

local function inspect(name, leases, queue, waiters, writers, readers, tokens, opened, most, locks, sides, frees, opens)
  most = tonumber(most)
  local kind, now = redis.call('TYPE', name).ok, now_ms()
  local mode = kind == 'hash' and redis.call('HGET', name, 'mode')
  local size = kind == 'hash' and redis.call('HLEN', name) or 0
  local leased, in_line = is_a(leases, 'zset'), is_a(queue, 'list')
  return {
    kind,
    redis.call('PTTL', name),
    now,
    short_text(name),
    size > 0 and kind_of_hash(name, size, mode) or '',
    size,
    kind == 'hash' and holds_of(name, mode, most) or {},
    leased and redis.call('ZCARD', leases) or 0,
    leased and redis.call('ZCOUNT', leases, '-inf', string.format('%.0f', now)) or 0,
    leased and permits_of(leases, now, most) or {},
    in_line and redis.call('LLEN', queue) or 0,
    in_line and line_of(queue, waiters, most) or {},
    reserving_waiters(writers, now, most),
    reserving_waiters(readers, now, most),
    short_text(tokens),
    redis.call('EXISTS', opened),
    { listeners(locks), listeners(sides), listeners(frees), listeners(opens) },
  }
end

-- [list] ------------------------------------------------------------------------------------------

-- A name that is longer than this is counted, but not listed. A number is never longer than
-- `LONGEST_NUMBER`.
local LONGEST_NAME = 1000
local LONGEST_NUMBER = 20

-- Returns the type of a key if the key may be one of ours; false if not; nil if the user is not
-- allowed to read the key.
local function type_of(key)
  local kind = redis.pcall('TYPE', key).ok
  if kind == 'string' then
    local length = redis.pcall('STRLEN', key)
    if type(length) ~= 'number' then
      return nil
    end
    return length <= LONGEST_NUMBER and kind
  end
  if not kind then
    return nil
  end
  return (kind == 'hash' or kind == 'list' or kind == 'zset') and kind
end

-- Lists the keys that may be ours: one page of a scan over all keys. It blocks other requests only
-- for the time that one page takes.
--
-- cursor   where the scan continues; 0 at its beginning
-- pattern  the pattern that the keys must match
-- count    about how many keys the server scans
-- Returns  { cursor, total, keys, denied, long }
--          cursor  0 at the end of the scan
--          total   how many keys the server has; -1 if the server does not report this
--          keys    a list of { key, type }
--          denied  how many keys the user is not allowed to read
--          long    how many names are too long to be listed

local function list(cursor, pattern, count)
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
  local keys, denied, long = {}, 0, 0
  for _, key in ipairs(page[2]) do
    local kind = type_of(key)
    if kind == nil then
      denied = denied + 1
    elseif kind and #key > LONGEST_NAME then
      long = long + 1
    elseif kind then
      keys[#keys + 1] = { key, kind }
    end
  end
  local total = redis.pcall('DBSIZE')
  return { page[1], type(total) == 'number' and total or -1, keys, denied, long }
end

-- [note_forced] -----------------------------------------------------------------------------------

-- Notes which client is about to end a hold by force, so that its holder learns the reason. The
-- note is only a courtesy, so it may fail when the server is out of memory. There are at most 4096
-- notes, so that a name whose holds are often ended by force does not fill the memory.
--
-- marker  hash: a field for each hold that was ended by force; lives as long as the
--         holds would have, so that their holders learn the reason
-- hold    the hold's id
-- by      the label of the client that ends the hold
-- ms      the remaining time of the hold's lease
-- Returns 1  noted
--         0  not noted

local function note_forced(marker, hold, by, ms)
  local size = redis.pcall('HLEN', marker)
  if type(size) ~= 'number' or size >= 4096
    or type(redis.pcall('HSET', marker, hold, by)) == 'table' then
    return 0
  end
  if redis.call('PTTL', marker) < tonumber(ms) then
    local expiry = redis.pcall('PEXPIRE', marker, ms)
    if type(expiry) == 'table' then redis.pcall('DEL', marker) end
  end
  return 1
end
