-- A group lock.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [shape] -----------------------------------------------------------------------------------------

-- Returns how long the group lives if its last hold lasts `lease_ms` more: a moment longer than the
-- hold. When the lease on a value ends, Redisson grants the value to the next holder, but does not
-- lengthen the life of a key that expires within a millisecond. Without the extra moment, the new
-- hold would vanish with the key.
local function life_ms(lease_ms)
  return string.format('%.0f', lease_ms + 100)
end

-- Returns the time at which the lease of `holder` on the value `f` ends; nil if there is no such
-- lease.
local function ends_at(group, f, holder)
  return tonumber(redis.call('HGET', group, f .. ':' .. holder .. ':expire_time') or '')
end

-- Removes the end and the count of this holder's hold on the value `f`. If an ACL denies this,
-- these two fields are removed with the group.
local function remove(group, f, holder)
  local pair = f .. ':' .. holder
  redis.pcall('HDEL', group, pair .. ':expire_time', pair .. ':lock_count')
end

-- [trim_expiry] -----------------------------------------------------------------------------------

-- Runs after a hold has ended. Removes the values of dead holders, and shortens the group's expiry
-- to the longest lease that remains. A group of more than 48 fields is not changed here: in such a
-- group, each acquire checks a few fields, and the expiry never becomes shorter.
local function trim_expiry(group)
  local size = redis.pcall('HLEN', group)
  if type(size) ~= 'number' or size == 0 or size > 48 then
    return
  end
  local all, now, longest = redis.pcall('HGETALL', group), now_ms(), -1
  for n = 1, #all, 2 do
    local f, holder = string.match(all[n], '^([^:]+):(.+):expire_time$')
    local left = f and (tonumber(all[n + 1]) or 0) - now
    if f and left < 0 then
      -- If the value already has another holder, it is not removed.
      if redis.call('HGET', group, f) == holder then
        redis.pcall('HDEL', group, f)
      end
      remove(group, f, holder)
    elseif f then
      longest = math.max(longest, left, 1)
    end
  end
  local life = longest > 0 and life_ms(longest)
  if life and redis.call('PTTL', group) > tonumber(life) then
    redis.pcall('PEXPIRE', group, life)
  end
end

-- [acquire] ---------------------------------------------------------------------------------------

-- Grants the requested values of a group to this hold, with a lease, if all of them are free.
--
-- group     hash with three fields for each value `f`: `f`, which contains its holder,
--           `f:holder:expire_time` in ms of the server's clock, and `f:holder:lock_count`
-- hold      this hold's id, `uuid:n`
-- lease_ms  how long the hold lasts without renewal
-- fields    the values' fields, separated by spaces
-- Returns   nil  granted; a repeated request changes nothing
--           n    another hold has one of the values for n ms more
--           text WRONGKIND: not a group of locks

local function acquire(group, hold, lease_ms, fields)
  local size = redis.call('HLEN', group)
  if size > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a group lock', group, size)
    if other then
      return other
    end
  end
  local now, busy_ms, dead = now_ms(), 0, {}
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    if holder == hold then
      -- The first copy of this request took all the values. A value that was lost after that is not
      -- taken again.
      return false
    end
    if holder then
      local ends = ends_at(group, f, holder)
      if ends and ends >= now then
        busy_ms = math.max(busy_ms, ends - now, 1)
      else
        dead[#dead + 1] = { f, holder }
      end
    end
  end
  if busy_ms > 0 then
    return busy_ms
  end
  -- Read this before the first write, because an ACL may deny the command.
  local ttl = redis.call('PTTL', group)
  local ends = string.format('%.0f', now + lease_ms)
  for f in string.gmatch(fields, '%S+') do
    local pair = f .. ':' .. hold
    redis.call('HSET', group, f, hold, pair .. ':expire_time', ends, pair .. ':lock_count', '1')
  end
  local life = life_ms(lease_ms)
  if size == 0 or (ttl >= 0 and ttl < tonumber(life)) then
    local expiry = redis.pcall('PEXPIRE', group, life)
    if type(expiry) == 'table' then
      -- Fields of a key without expiry would outlive their holder.
      for f in string.gmatch(fields, '%S+') do
        remove(group, f, hold)
        redis.call('HDEL', group, f)
      end
      return expiry.err
    end
  end
  for _, one in ipairs(dead) do
    remove(group, one[1], one[2])
  end
  -- The values of other dead holders would remain for as long as the group is in use. So each
  -- acquire checks a few fields at a changing position in the hash, and removes such values.
  if size > 48 then
    local some = redis.pcall('HSCAN', group, now % 1048576, 'COUNT', 8)[2] or {}
    for n = 1, #some, 2 do
      local f, holder = string.match(some[n], '^([^:]+):(.+):expire_time$')
      if f and (tonumber(some[n + 1]) or 0) < now then
        if redis.call('HGET', group, f) == holder then
          redis.pcall('HDEL', group, f)
        end
        remove(group, f, holder)
      end
    end
  end
  return false
end

-- [release] ---------------------------------------------------------------------------------------

-- Frees the values that this hold still has, and wakes the waiters.
--
-- group    hash: for each value `f` its holder, and two more fields
-- hold     this hold's id
-- channel  where the waiters listen
-- fields   the values' fields, separated by spaces
-- Returns  1     all values were released
--          0     this hold had none of them any longer; nothing was changed
--          list  the fields that this hold no longer had; the others were released

local function release(group, hold, channel, fields)
  local lost, had = {}, false
  for f in string.gmatch(fields, '%S+') do
    if redis.call('HGET', group, f) == hold then
      -- The first command must be one that works when the server is out of memory. The hash is
      -- deleted with its last field.
      redis.call('HDEL', group, f)
      had = true
    else
      lost[#lost + 1] = f
    end
    remove(group, f, hold)
  end
  if not had then
    return 0
  end
  trim_expiry(group)
  -- Waking one waiter of each Java process is not enough: that waiter may want another value.
  wake_all(channel)
  return #lost == 0 and 1 or lost
end

-- [renew] -----------------------------------------------------------------------------------------

-- Renews this hold if it still has every value: it lasts for at least `lease_ms` from now.
--
-- group     hash: for each value `f` its holder, and two more fields
-- hold      this hold's id
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- fields    the values' fields, separated by spaces
-- Returns   n  renewed, and n ms remain now
--           0  this hold has lost one of the values, or its lease has expired; nothing was changed

local function renew(group, hold, lease_ms, most_ms, fields)
  local now, most, ends = now_ms(), tonumber(most_ms), {}
  for f in string.gmatch(fields, '%S+') do
    local at = redis.call('HGET', group, f) == hold and ends_at(group, f, hold)
    if not at or at < now then
      return 0
    end
    ends[f] = at
  end
  -- This removes nothing, but lets the rest run when the server is out of memory: the server checks
  -- its memory only once, before the first write.
  redis.pcall('HDEL', group, '')
  local ttl = redis.call('PTTL', group)
  local life = life_ms(lease_ms)
  if ttl >= 0 then
    -- Write even if nothing changes: a client that waits for replicas waits for this write.
    redis.call('PEXPIRE', group, math.max(ttl, life))
  end
  local wanted, left = now + lease_ms, 0
  for f, at in pairs(ends) do
    if at < wanted or (most > 0 and at - now > most) then
      redis.call('HSET', group, f .. ':' .. hold .. ':expire_time', string.format('%.0f', wanted))
      at = wanted
    end
    left = math.max(left, at - now, 1)
  end
  return left
end

-- [why_lost] --------------------------------------------------------------------------------------

-- Returns the values that a hold no longer has, and their current holders.
--
-- group   hash: for each value `f` its holder, and two more fields
-- marker  hash: a field per hold that was ended by force, with the label of the client that did it
-- hold    the lost hold
-- fields  the values' fields, separated by spaces
-- Returns { note, f, holder, ... }  the note in `marker` if the hold was ended by force, else 0;
--         then each field that the hold no longer has, and its holder, or an empty string

local function why_lost(group, marker, hold, fields)
  local reply = { redis.call('HGET', marker, hold) or 0 }
  local now = now_ms()
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    local ends = holder and ends_at(group, f, holder)
    local live = ends and ends >= now
    if holder ~= hold or not live then
      reply[#reply + 1] = f
      reply[#reply + 1] = live and holder or ''
    end
  end
  return reply
end

-- [force_unlock] ----------------------------------------------------------------------------------

-- Ends the current holds of these values, and notes which client ended them by force.
--
-- group    hash: for each value `f` its holder, and two more fields
-- marker   hash: a field per hold that was ended by force; lives as long as the holds would have,
--          so that their holders learn the reason
-- channel  where the waiters listen
-- fields   the values' fields, separated by spaces
-- by       the label of the client that ends the holds
-- Returns  1  at least one value was held
--          0  all values were free
--          text WRONGKIND: not a group of locks; nothing was changed

local function force_unlock(group, marker, channel, fields, by)
  local size = redis.call('HLEN', group)
  if size == 0 then
    return 0
  end
  local other = wrong_kind('a group lock', group, size)
  if other then
    return other
  end
  local now, ended, marked_ms = now_ms(), 0, redis.call('PTTL', marker)
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    if holder then
      local left = (ends_at(group, f, holder) or 0) - now
      redis.call('HDEL', group, f)
      remove(group, f, holder)
      if left >= 0 then
        ended = 1
        -- The note is only a courtesy to the holder, so it may fail when the server is out of
        -- memory. There are at most 64 notes, so that a name that is often unlocked by force does
        -- not fill the memory.
        local noted = redis.pcall('HLEN', marker)
        noted = type(noted) == 'number' and noted < 64 and redis.pcall('HSET', marker, holder, by)
        if type(noted) == 'number' and marked_ms < math.max(left, 1) then
          marked_ms = math.max(left, 1)
          local expiry = redis.pcall('PEXPIRE', marker, marked_ms)
          if type(expiry) == 'table' then redis.pcall('DEL', marker) end
        end
      end
    end
  end
  trim_expiry(group)
  wake_all(channel)
  return ended
end

-- [inspect] ---------------------------------------------------------------------------------------

-- Returns the holders of these values, and how long their leases still last.
--
-- group   hash: for each value `f` its holder, and two more fields
-- fields  the values' fields, separated by spaces
-- Returns { ttl, holder, count, ... }  the remaining time of the longest lease in ms, and each
--                                      holder once, with its count
--         { -2 }                       all values are free
--         text WRONGKIND: not a group of locks

local function inspect(group, fields)
  local size = redis.call('HLEN', group)
  local other = wrong_kind('a group lock', group, size)
  if other then
    return other
  end
  local now, reply, seen = now_ms(), { -2 }, {}
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    local ends = holder and ends_at(group, f, holder)
    if ends and ends >= now then
      reply[1] = math.max(reply[1], ends - now)
      if not seen[holder] then
        seen[holder] = true
        reply[#reply + 1] = holder
        reply[#reply + 1] = redis.call('HGET', group, f .. ':' .. holder .. ':lock_count') or '1'
      end
    end
  end
  return reply
end
