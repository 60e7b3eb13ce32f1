-- A fair lock and its line.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [queue] -----------------------------------------------------------------------------------------

-- The line of a fair lock, which Redisson's waiters share.
--
-- queue     list: the waiters in order of arrival; Redisson's key
-- timeouts  zset: the waiters, each with the time (ms) from which Redisson counts it as dead;
--           Redisson's key
-- waiters   zset: our waiters among them, each with the time (ms) until which it counts as
--           alive, which each of its requests extends; our own key
-- `key.rs` forms the names of the keys (`fair_queue`, `fair_timeouts`, `fair_waiters`).
--
-- Redisson's arithmetic: a waiter's timeout is the timeout of the waiter before it plus an
-- allowance. When a waiter is removed, its allowance is subtracted from the timeouts of all waiters
-- behind it. Our waiters use Redisson's allowance. With a smaller one, two grants in a row would
-- put a timeout into the past, and Redisson removes a waiter whose timeout has passed. If all
-- waiters in line are ours, nothing reads a timeout until a waiter of Redisson joins, and that
-- waiter reads only the last one. So in that case only the last timeout is kept correct, and the
-- cost of a grant does not depend on the length of the line.
--
-- When a waiter keeps its place or a hold ends, the first write works even if the server is out of
-- memory, and the server then runs the other writes, too. So no waiter loses its place because the
-- server is out of memory.
local ALLOWANCE_MS = 300000
-- `waiters` expires when no waiter has sent a request for this time.
local IDLE_EXPIRY_MS = 3600000
-- The largest number of arguments (scores and waiters) in one command: Lua can't pass more than a
-- few thousand.
local MOST_MOVED = 1000

local function wrong_type(size, what, key)
  if type(size) == 'number' then return false end
  if not string.find(size.err, 'WRONGTYPE', 1, true) then return size.err end
  return 'WRONGKIND a lock whose ' .. what .. ' is a ' .. redis.call('TYPE', key).ok
end

-- Checks the three keys. Returns an error message if one of them is not part of a line, else false;
-- and the number of entries in all three.
local function check_keys(queue, timeouts, waiters)
  local length, timed = redis.pcall('LLEN', queue), redis.pcall('ZCARD', timeouts)
  local ours = redis.pcall('ZCARD', waiters)
  local other = wrong_type(length, 'queue', queue) or wrong_type(timed, 'set of timeouts', timeouts)
    or wrong_type(ours, 'set of waiters', waiters)
  return other, other or length + timed + ours
end

-- Returns whether any of Redisson's waiters are in line.
local function is_shared(queue, waiters)
  return redis.call('ZCARD', waiters) ~= redis.call('LLEN', queue)
end

-- Sets the timeout of the last waiter to the value that Redisson would compute.
local function set_last_timeout(queue, timeouts, waiters, free_at)
  local last = redis.call('LINDEX', queue, -1)
  if last and redis.call('ZSCORE', waiters, last) then
    redis.pcall('ZADD', timeouts, free_at + ALLOWANCE_MS * redis.call('LLEN', queue), last)
  end
end

-- Removes some of our waiters from the line. The waiters behind them move up. No timeout becomes
-- earlier than `free_at`, the end of the current hold: a waiter may have waited longer than
-- Redisson expects, because our waiters before it keep their places by sending requests.
local function remove_waiters(queue, timeouts, waiters, gone, free_at)
  local line = is_shared(queue, waiters) and redis.call('LRANGE', queue, 0, -1)
  local first = redis.call('LRANGE', queue, 0, #gone - 1)
  local is_gone, are_first = {}, true
  for place, waiter in ipairs(gone) do
    is_gone[waiter] = true
    are_first = are_first and first[place] == waiter
  end
  -- Change the list first: this works when the server is out of memory, and if an ACL denies it,
  -- nothing has been changed.
  if are_first then
    redis.call('LPOP', queue, #gone)
  else
    for _, waiter in ipairs(gone) do redis.call('LREM', queue, 0, waiter) end
  end
  redis.call('ZREM', timeouts, unpack(gone))
  redis.call('ZREM', waiters, unpack(gone))
  if not line then
    return set_last_timeout(queue, timeouts, waiters, free_at)
  end
  -- Use a few commands, and not two for each waiter, because the line may be long.
  local timeout_of, scores = {}, redis.call('ZRANGE', timeouts, 0, -1, 'WITHSCORES')
  for n = 1, #scores, 2 do timeout_of[scores[n]] = tonumber(scores[n + 1]) end
  local taken, moved = 0, {}
  for _, waiter in ipairs(line) do
    local timeout = timeout_of[waiter]
    if is_gone[waiter] then
      taken = taken + ALLOWANCE_MS
    elseif taken > 0 and timeout and timeout > free_at then
      timeout_of[waiter] = math.max(timeout - taken, free_at)
      moved[#moved + 1] = timeout_of[waiter]
      moved[#moved + 1] = waiter
      if #moved == MOST_MOVED then
        redis.pcall('ZADD', timeouts, unpack(moved))
        moved = {}
      end
    end
  end
  if #moved > 0 then redis.pcall('ZADD', timeouts, unpack(moved)) end
end

-- Removes dead waiters and returns the head of the line. Our waiters count as dead if they have not
-- sent a request in time, Redisson's waiters according to Redisson's rule. The list and the set of
-- timeouts must always have the same entries. An entry only in the list makes Redisson fail, and an
-- entry only in the set makes it wait forever, so such entries are removed.
local function tidy(queue, timeouts, waiters, now, free_at)
  local gone = redis.call('ZRANGEBYSCORE', waiters, '-inf', now, 'LIMIT', 0, 100)
  if #gone > 0 then
    remove_waiters(queue, timeouts, waiters, gone, free_at)
  end
  local head = redis.call('LINDEX', queue, 0)
  while head do
    local timeout = tonumber(redis.call('ZSCORE', timeouts, head))
    if timeout and (timeout > now or redis.call('ZSCORE', waiters, head)) then
      return head
    end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, head)
    redis.call('ZREM', waiters, head)
    head = redis.call('LINDEX', queue, 0)
  end
  if redis.call('EXISTS', timeouts) == 1 then redis.call('DEL', timeouts) end
  if redis.call('EXISTS', waiters) == 1 then redis.call('DEL', waiters) end
  return false
end

-- Keeps the places of these waiters, whose timeouts are `scores`: notes that they are alive, and
-- keeps Redisson from removing them.
local function refresh_places(queue, timeouts, waiters, holds, scores, now, free_at, place_ms)
  -- Run this before the commands that need memory: a waiter must not lose its place because the
  -- server is out of memory.
  redis.call('PEXPIRE', waiters, IDLE_EXPIRY_MS)
  local alive, late = {}, {}
  for n, hold in ipairs(holds) do alive[2 * n - 1], alive[2 * n] = now + place_ms, hold end
  redis.call('ZADD', waiters, unpack(alive))
  local last = redis.call('LINDEX', queue, -1)
  for n, hold in ipairs(holds) do
    if hold == last and not is_shared(queue, waiters) then
      set_last_timeout(queue, timeouts, waiters, free_at)
    elseif tonumber(scores[n]) < now + place_ms + ALLOWANCE_MS then
      -- This leaves enough time even if Redisson subtracts two allowances, for a grant and for a
      -- waiter that gives up, before this waiter sends its next request.
      late[#late + 1], late[#late + 2] = free_at + place_ms + ALLOWANCE_MS, hold
    end
  end
  if #late > 0 then redis.call('ZADD', timeouts, unpack(late)) end
end

-- Returns for how many ms a free lock is reserved for the head of the line.
local function head_time_left(timeouts, waiters, head, now)
  local until_ms = redis.call('ZSCORE', waiters, head) or redis.call('ZSCORE', timeouts, head)
  return math.max((until_ms or 0) - now, 0)
end

-- Notifies the head that the lock is free. An ACL may deny the channel.
local function notify_head(channel, head)
  if head then redis.pcall('PUBLISH', channel .. ':' .. head, '0') end
end

-- [acquire] ---------------------------------------------------------------------------------------

local function join(queue, timeouts, waiters, hold, now, free_at, place_ms)
  local timeout = free_at + ALLOWANCE_MS * (redis.call('LLEN', queue) + 1)
  if is_shared(queue, waiters) then
    local last = redis.call('LINDEX', queue, -1)
    local before = last and tonumber(redis.call('ZSCORE', timeouts, last))
    timeout = math.max(before or 0, free_at) + ALLOWANCE_MS
  end
  redis.call('ZADD', timeouts, timeout, hold)
  local pushed = redis.pcall('RPUSH', queue, hold)
  -- An ACL may deny the command. An entry that is only in the set would make Redisson wait forever.
  if type(pushed) == 'table' then
    redis.call('ZREM', timeouts, hold)
    return pushed.err
  end
  redis.call('ZADD', waiters, now + place_ms, hold)
  redis.call('PEXPIRE', waiters, IDLE_EXPIRY_MS)
  return false
end

-- Grants the lock to this hold if it is free and no other waiter is the head of the line. Otherwise
-- gives the hold a place in line, or keeps the place it has, unless `place_ms` is 0.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- hold      this hold's field, and its name in line
-- lease_ms  how long the hold lasts without renewal, from now: a repeated request
--           lengthens the lease, because the holder counts it from the request that was answered
-- place_ms  how long the place is kept unless the waiter sends another request; 0 to take no place
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- for_ever  0 if a line whose waiters send no requests may expire; 1 if waiters of Redisson may
--           be in it, which send no requests and rely on the line
-- Returns   nil  granted
--           n    not granted: held for n ms more (-1 without expiry), or free and reserved
--                for the head of the line for n ms more
--           text WRONGKIND: not a fair lock

local function acquire(lock, queue, timeouts, waiters, hold, lease_ms, place_ms, channel, for_ever)
  local other, in_line = check_keys(queue, timeouts, waiters)
  local fields = redis.call('HLEN', lock)
  if not other and fields > 0 and redis.call('HEXISTS', lock, hold) == 1 then
    --[[USES can_be_renewed]]
    -- A request that arrives late must not lengthen a hold whose end is fixed.
    if can_be_renewed(lock, hold) then
      -- Write even if nothing changes: a client that waits for replicas waits for this write.
      redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease_ms))
    end
    return false
  end
  if not other and fields > 0 then
    --[[USES wrong_kind]]
    other = wrong_kind('a plain lock', lock, fields)
  end
  if other then
    return other
  end
  local waits = tonumber(place_ms) > 0
  if fields == 0 and in_line == 0 then
    return grant(lock, hold, lease_ms)
  end
  local now, ttl = now_ms(), redis.call('PTTL', lock)
  local free_at = now + math.max(ttl, 0)
  local timeout = waits and redis.call('ZSCORE', timeouts, hold)
  if timeout then
    -- Do this before dead waiters are removed: this waiter has just sent a request, so it is alive.
    refresh_places(queue, timeouts, waiters, { hold }, { timeout }, now, free_at, place_ms)
  end
  local head = in_line > 0 and tidy(queue, timeouts, waiters, now, free_at)
  if fields == 0 and (not head or head == hold) then
    if head then
      remove_waiters(queue, timeouts, waiters, { hold }, now + lease_ms)
    end
    return grant(lock, hold, lease_ms)
  end
  if waits and not redis.call('ZSCORE', timeouts, hold) then
    local refused = join(queue, timeouts, waiters, hold, now, free_at, place_ms)
    if refused then
      return refused
    end
  end
  if waits and for_ever == '0' then
    -- Both keys must expire at the same time: one without the other makes Redisson fail or wait
    -- forever.
    redis.call('PEXPIRE', queue, IDLE_EXPIRY_MS)
    redis.call('PEXPIRE', timeouts, IDLE_EXPIRY_MS)
  end
  if fields > 0 then
    return ttl
  end
  -- The head might not know that the lock is free: a lease may have ended, or the waiter before the
  -- head may have given up. Some of Redisson's waiters sleep until they are notified.
  notify_head(channel, head)
  return head_time_left(timeouts, waiters, head, now)
end

-- [keep_places] -----------------------------------------------------------------------------------

-- Keeps the places of several waiters of one client. Does not create places and grants nothing, so
-- a request that arrives late does no harm.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- holds     the names of the waiters in line, each after a space
-- place_ms  how long the places are kept unless the waiters send another request
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- for_ever  0 if a line whose waiters send no requests may expire; 1 if waiters of Redisson may
--           be in it, which send no requests and rely on the line
-- Returns   a list: first, how long the lock is held or reserved for the head, as `fair.acquire`
--           returns it; then the numbers, from 1, of the waiters that must each send their own
--           request, because they have no place, or are the head of a free lock
--           text WRONGKIND: not the line of a fair lock

local function keep_places(lock, queue, timeouts, waiters, holds, place_ms, channel, for_ever)
  local other = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local now, ttl = now_ms(), redis.call('PTTL', lock)
  local free_at = now + math.max(ttl, 0)
  local in_line, scores, number_of, reply = {}, {}, {}, { ttl }
  local number = 0
  for hold in string.gmatch(holds, '%S+') do
    number = number + 1
    local timeout = redis.call('ZSCORE', timeouts, hold)
    if timeout then
      in_line[#in_line + 1], scores[#scores + 1] = hold, timeout
      number_of[hold] = number
    else
      reply[#reply + 1] = number
    end
  end
  if #in_line > 0 then
    refresh_places(queue, timeouts, waiters, in_line, scores, now, free_at, place_ms)
    if for_ever == '0' then
      redis.call('PEXPIRE', queue, IDLE_EXPIRY_MS)
      redis.call('PEXPIRE', timeouts, IDLE_EXPIRY_MS)
    end
  end
  if ttl ~= -2 then
    return reply
  end
  -- The head might not have been notified: a lease may have ended, or the waiter before the head
  -- may have given up. Dead waiters are not removed here: while a failover guard lasts, a waiter's
  -- own request does not keep its place.
  local head = redis.call('LINDEX', queue, 0)
  reply[1] = head and head_time_left(timeouts, waiters, head, now) or 0
  if number_of[head] then
    reply[#reply + 1] = number_of[head]
  else
    notify_head(channel, head)
  end
  return reply
end

-- [release] ---------------------------------------------------------------------------------------

-- Returns the head and the waiters right behind it that belong to the same client: at most 64, the
-- number of waiters to which a hold is handed over, one after the other.
local function successors(queue, own, head)
  local next = { head }
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, 62)) do
    if string.sub(waiter, 1, #own) ~= own then break end
    next[#next + 1] = waiter
  end
  return next
end

-- Frees the lock if this hold still has it, and removes the hold's place from the line, if any. If
-- that leaves the lock free, the head of the line is granted the lock if it belongs to the same
-- client and this hold had the lock; otherwise the head is notified.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- hold      this hold's field, and its name in line
-- channel   the part before `:uuid:n` in the name of each waiter's channel; the message
--           is "0", as Redisson sends it, and is sent only if there is a waiter
-- lease_ms  how long the head has the lock without renewal; 0 to only notify it
-- own       the beginning of this client's ids
-- served    waiters to which this hold was handed over and which are still in line,
--           separated by spaces
-- Returns   1     released
--           0     this hold did not have the lock; it is no longer in line
--           list  released; the first waiter of the list has the lock, and the others are right
--                 behind it in line and belong to this client
--           text  WRONGKIND: not a fair lock; nothing was changed

local function release(lock, queue, timeouts, waiters, hold, channel, lease_ms, own, served)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  -- HDEL is first, because it works when the server is out of memory.
  local released = redis.call('HDEL', lock, hold)
  if in_line == 0 then
    return released
  end
  local now, ttl = now_ms(), redis.call('PTTL', lock)
  local free_at = now + math.max(ttl, 0)
  local gone = {}
  for waiter in string.gmatch(served, '%S+') do gone[#gone + 1] = waiter end
  if redis.call('ZSCORE', timeouts, hold) or redis.call('ZSCORE', waiters, hold) then
    gone[#gone + 1] = hold
  end
  if #gone > 0 then
    remove_waiters(queue, timeouts, waiters, gone, free_at)
  end
  local head = tidy(queue, timeouts, waiters, now, free_at)
  if ttl ~= -2 then
    return released
  end
  -- A release that is repeated after a failover must not grant what a failover guard holds back.
  local is_own = head and string.sub(head, 1, #own) == own
  if released == 0 or lease_ms == '0' or not is_own --[[OR GUARDED]] then
    notify_head(channel, head)
    return released
  end
  remove_waiters(queue, timeouts, waiters, { head }, now + lease_ms)
  return grant(lock, head, lease_ms) or successors(queue, own, head)
end

-- [keep_for] --------------------------------------------------------------------------------------

-- Makes this hold end `span_ms` from now, even if that is sooner than before. No renewal changes
-- the end after that.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- hold      this hold's field
-- span_ms   how long the hold lasts from now
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- served    waiters to which this hold was handed over and which are still in line,
--           separated by spaces
-- Returns   1     set
--           0     this hold no longer has the lock; nothing was changed
--           text  WRONGKIND: not a fair lock; nothing was changed

local function keep_for(lock, queue, timeouts, waiters, hold, span_ms, channel, served)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local is_sooner = keep_for_span(span_ms, lock, hold)
  if in_line == 0 then
    return 1
  end
  local now, gone = now_ms(), {}
  local free_at = now + span_ms
  for waiter in string.gmatch(served, '%S+') do gone[#gone + 1] = waiter end
  if #gone > 0 then
    remove_waiters(queue, timeouts, waiters, gone, free_at)
  end
  local head = tidy(queue, timeouts, waiters, now, free_at)
  -- The head must send a request to learn the new end. The waiters behind it wait for its release.
  if is_sooner then
    notify_head(channel, head)
  end
  return 1
end

-- [force_unlock] ----------------------------------------------------------------------------------

-- Ends the current hold, notes which client ended it by force, and notifies the head of the line.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- marker    hash: a field per hold that was ended by force, with the label of the client that did
--           it
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- by        the label of the client that ends the hold
-- Returns   1  unlocked
--           0  the lock was free
--           text WRONGKIND: not a fair lock; nothing was changed

local function force_unlock(lock, queue, timeouts, waiters, marker, channel, by)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local broken = break_hold(lock, marker, by)
  if broken == 1 and in_line > 0 then
    local now = now_ms()
    notify_head(channel, tidy(queue, timeouts, waiters, now, now))
  end
  return broken
end

-- [list_waiters] ----------------------------------------------------------------------------------

-- Returns the waiters in order of arrival. Omits our waiters that are dead but not yet removed.
--
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- Returns   a list of `uuid:n`
--           text WRONGKIND: not the line of a fair lock

local function list_waiters(queue, timeouts, waiters)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local alive = {}
  if in_line == 0 then
    return alive
  end
  local now = now_ms()
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local until_ms = tonumber(redis.call('ZSCORE', waiters, waiter))
    if not until_ms or until_ms > now then
      alive[#alive + 1] = waiter
    end
  end
  return alive
end
