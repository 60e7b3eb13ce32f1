-- The line before a fair lock, which Redisson's waiters stand in too.
--
-- queue     list: the waiters, first come first; Redisson's
-- timeouts  zset: the time (ms) from which Redisson takes a waiter for gone; Redisson's
-- waiters   zset: those among them that are ours, and the time (ms) until which each
--           counts as alive unless it asks again; our own key
-- Their names are made in `key.rs` (`fair_queue`, `fair_timeouts`, `fair_waiters`).
--
-- Redisson's arithmetic: a waiter's timeout is that of the one before it and an
-- allowance, and whoever leaves takes its allowance off all behind it. Each of ours
-- brings the allowance that Redisson's take off at a grant: with less, two grants in a
-- row would put ours into the past, and Redisson throws those out.
-- While all in line are ours, only the next waiter of Redisson's reads a timeout, and it reads
-- the last one. So only the last is kept right then, and a grant costs the same however long
-- the line is.
--
-- Where a waiter keeps its place or a hold ends, the first write works when the server is out
-- of memory, and lets the others through: so a place outlives a full server.
local ALLOWANCE_MS = 300000
-- `waiters` ends when nobody has asked for that long.
local KEPT_MS = 3600000
-- Scores and waiters in one command: Lua passes no more than some thousands.
local MOST_MOVED = 1000

local function wrong(size, what, key)
  if type(size) == 'number' then return false end
  if not string.find(size.err, 'WRONGTYPE', 1, true) then return size.err end
  return 'WRONGKIND a lock whose ' .. what .. ' is a ' .. redis.call('TYPE', key).ok
end

-- What stands in the way of a line, or false; and how many entries a line has.
local function look(queue, timeouts, waiters)
  local length, timed = redis.pcall('LLEN', queue), redis.pcall('ZCARD', timeouts)
  local ours = redis.pcall('ZCARD', waiters)
  local other = wrong(length, 'queue', queue) or wrong(timed, 'set of timeouts', timeouts)
    or wrong(ours, 'set of waiters', waiters)
  return other, other or length + timed + ours
end

-- Whether any of Redisson's are in line.
local function is_shared(queue, waiters)
  return redis.call('ZCARD', waiters) ~= redis.call('LLEN', queue)
end

-- Gives the last one the timeout that Redisson would count for it.
local function settle_last(queue, timeouts, waiters, free_at)
  local last = redis.call('LINDEX', queue, -1)
  if last and redis.call('ZSCORE', waiters, last) then
    redis.pcall('ZADD', timeouts, free_at + ALLOWANCE_MS * redis.call('LLEN', queue), last)
  end
end

-- Takes some of ours out of the line. Those behind them move up, but none so far that it would
-- be gone before the present hold is: it may have waited for longer than Redisson expects,
-- because ours ahead of it stay alive by asking.
local function take_out(queue, timeouts, waiters, gone, free_at)
  local line = is_shared(queue, waiters) and redis.call('LRANGE', queue, 0, -1)
  local first = redis.call('LRANGE', queue, 0, #gone - 1)
  local is_gone, are_first = {}, true
  for place, waiter in ipairs(gone) do
    is_gone[waiter] = true
    are_first = are_first and first[place] == waiter
  end
  -- The list first, before the sets and all else: it works when the server is out of memory,
  -- and if an ACL denies it nothing has changed.
  if are_first then
    redis.call('LPOP', queue, #gone)
  else
    for _, waiter in ipairs(gone) do redis.call('LREM', queue, 0, waiter) end
  end
  redis.call('ZREM', timeouts, unpack(gone))
  redis.call('ZREM', waiters, unpack(gone))
  if not line then
    return settle_last(queue, timeouts, waiters, free_at)
  end
  -- By few commands, and not by two for each waiter: the line may be long.
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

-- Takes out the waiters that are gone, ours by their silence and Redisson's by its own rule,
-- and gives back the head. List and set always change together: an entry of the list alone
-- makes Redisson fail, one of the set alone makes it wait for ever; so such an entry goes.
local function tidy(queue, timeouts, waiters, now, free_at)
  local gone = redis.call('ZRANGEBYSCORE', waiters, '-inf', now, 'LIMIT', 0, 100)
  if #gone > 0 then
    take_out(queue, timeouts, waiters, gone, free_at)
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

-- Tells the head that the lock is free. An ACL may deny the channel.
local function call_head(channel, head)
  if head then redis.pcall('PUBLISH', channel .. ':' .. head, '0') end
end
