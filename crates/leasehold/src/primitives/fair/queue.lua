-- The line of a fair lock, which Redisson's waiters share.
--
-- queue     list: the waiters in order of arrival; Redisson's key
-- timeouts  zset: the waiters, each with the time (ms) from which Redisson counts it as dead;
--           Redisson's key
-- waiters   zset: our waiters among them, each with the time (ms) until which it counts as
--           alive unless it asks again; our own key
-- `key.rs` forms the names of the keys (`fair_queue`, `fair_timeouts`, `fair_waiters`).
--
-- Redisson's arithmetic: a waiter's timeout is the timeout of the waiter before it plus an
-- allowance. When a waiter is removed, its allowance is subtracted from the timeouts of all waiters
-- behind it. Our waiters use Redisson's allowance. With a smaller one, two grants in a row would
-- put a timeout into the past, and Redisson removes such waiters. While all waiters in line are
-- ours, no timeout is read until a waiter of Redisson joins, and that waiter reads only the last
-- one. So only the last timeout is kept right then, and the cost of a grant does not depend on the
-- length of the line.
--
-- When a waiter keeps its place or a hold ends, the first write works even if the server is out of
-- memory, and the server then runs the other writes too. So no waiter loses its place because the
-- server is full.
local ALLOWANCE_MS = 300000
-- `waiters` expires when no waiter has asked for this long.
local IDLE_EXPIRY_MS = 3600000
-- Largest number of arguments (scores and waiters) in one command: Lua can't pass more than some
-- thousands.
local MOST_MOVED = 1000

local function wrong_type(size, what, key)
  if type(size) == 'number' then return false end
  if not string.find(size.err, 'WRONGTYPE', 1, true) then return size.err end
  return 'WRONGKIND a lock whose ' .. what .. ' is a ' .. redis.call('TYPE', key).ok
end

-- Checks the three keys. Returns an error text if one of them is not part of a line, else false;
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
-- Redisson expects, because our waiters before it keep their places by asking.
local function remove_waiters(queue, timeouts, waiters, gone, free_at)
  local line = is_shared(queue, waiters) and redis.call('LRANGE', queue, 0, -1)
  local first = redis.call('LRANGE', queue, 0, #gone - 1)
  local is_gone, are_first = {}, true
  for place, waiter in ipairs(gone) do
    is_gone[waiter] = true
    are_first = are_first and first[place] == waiter
  end
  -- The list is changed first: this works when the server is out of memory, and if an ACL denies
  -- it, nothing has been changed.
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
  -- A few commands, not two for each waiter: the line may be long.
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

-- Removes dead waiters and returns the head of the line. Our waiters are dead if they have not
-- asked in time, Redisson's by Redisson's rule. The list and the set of timeouts always change
-- together. An entry only in the list makes Redisson fail, and an entry only in the set makes it
-- wait for ever, so such entries are removed.
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
  -- Before the commands that need memory: a waiter must not lose its place because the server has
  -- no memory left.
  redis.call('PEXPIRE', waiters, IDLE_EXPIRY_MS)
  local alive, late = {}, {}
  for n, hold in ipairs(holds) do alive[2 * n - 1], alive[2 * n] = now + place_ms, hold end
  redis.call('ZADD', waiters, unpack(alive))
  local last = redis.call('LINDEX', queue, -1)
  for n, hold in ipairs(holds) do
    if hold == last and not is_shared(queue, waiters) then
      set_last_timeout(queue, timeouts, waiters, free_at)
    elseif tonumber(scores[n]) < now + place_ms + ALLOWANCE_MS then
      -- This leaves enough even if a grant and a give-up by Redisson subtract their allowances
      -- before this waiter asks again.
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
