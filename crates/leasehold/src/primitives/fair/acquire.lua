-- Keeps a waiter's place in line: it is alive, and Redisson does not take it for gone.
local function stay(queue, timeouts, waiters, hold, now, free_at, stay_ms)
  -- Before what needs memory: a place is not lost because the server has none left.
  redis.call('PEXPIRE', waiters, KEPT_MS)
  redis.call('ZADD', waiters, now + stay_ms, hold)
  if redis.call('LINDEX', queue, -1) == hold and not is_shared(queue, waiters) then
    settle_last(queue, timeouts, waiters, free_at)
  elseif tonumber(redis.call('ZSCORE', timeouts, hold)) < now + stay_ms + ALLOWANCE_MS then
    -- Enough for what a grant and a give-up of Redisson's can take off until it asks
    -- again.
    redis.call('ZADD', timeouts, free_at + stay_ms + ALLOWANCE_MS, hold)
  end
end

local function join(queue, timeouts, waiters, hold, now, free_at, stay_ms)
  local timeout = free_at + ALLOWANCE_MS * (redis.call('LLEN', queue) + 1)
  if is_shared(queue, waiters) then
    local last = redis.call('LINDEX', queue, -1)
    local before = last and tonumber(redis.call('ZSCORE', timeouts, last))
    timeout = math.max(before or 0, free_at) + ALLOWANCE_MS
  end
  redis.call('ZADD', timeouts, timeout, hold)
  local pushed = redis.pcall('RPUSH', queue, hold)
  -- An ACL may deny it. In the set alone the waiter would make Redisson wait for ever.
  if type(pushed) == 'table' then
    redis.call('ZREM', timeouts, hold)
    return pushed.err
  end
  redis.call('ZADD', waiters, now + stay_ms, hold)
  redis.call('PEXPIRE', waiters, KEPT_MS)
  return false
end

-- Takes the lock for this hold if it is free and nobody else's turn; else, if it is
-- to wait, takes or keeps a place in line.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: when Redisson takes each for gone
-- waiters   zset: until when each of ours counts as alive
-- hold      this hold's field, and its name in line
-- lease_ms  how long it lasts without renewal, from now: a request that comes again
--           makes it longer, because the holder counts from the one that was answered
-- stay_ms   how long its place is kept unless it asks again; 0 to take none
-- channel   what is before `:uuid:n` in the name of each waiter's channel
-- for_ever  0 if a line in which nobody asks any more may go; 1 if some of Redisson's
--           may stand in it, who count on it without asking
-- Returns   nil  granted
--           n    not now: held for n ms more (-1 without expiry), or free and the
--                head's turn, which has n ms more to take it
--           text WRONGKIND: not a fair lock

local function acquire(lock, queue, timeouts, waiters, hold, lease_ms, stay_ms, channel, for_ever)
  local other, in_line = look(queue, timeouts, waiters)
  local fields = redis.call('HLEN', lock)
  if not other and fields > 0 and redis.call('HEXISTS', lock, hold) == 1 then
    --[[USES can_be_renewed]]
    -- An ask that arrives late must not lengthen what is left to a span.
    if can_be_renewed(lock, hold) then
      -- Written in any case: whoever waits for replicas waits for what this has written.
      redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), lease_ms))
    end
    return false
  end
  if not other and fields > 0 then
    --[[USES other_than]]
    other = other_than('a plain lock', lock, fields)
  end
  if other then
    return other
  end
  local waits = tonumber(stay_ms) > 0
  if fields == 0 and in_line == 0 then
    return grant(lock, hold, lease_ms)
  end
  local now, ttl = now_ms(), redis.call('PTTL', lock)
  local free_at = now + math.max(ttl, 0)
  if waits and redis.call('ZSCORE', timeouts, hold) then
    -- Before the waiters that are gone are taken out: this one asks, so it is none of them.
    stay(queue, timeouts, waiters, hold, now, free_at, stay_ms)
  end
  local head = in_line > 0 and tidy(queue, timeouts, waiters, now, free_at)
  if fields == 0 and (not head or head == hold) then
    if head then
      take_out(queue, timeouts, waiters, { hold }, now + lease_ms)
    end
    return grant(lock, hold, lease_ms)
  end
  if waits and not redis.call('ZSCORE', timeouts, hold) then
    local refused = join(queue, timeouts, waiters, hold, now, free_at, stay_ms)
    if refused then
      return refused
    end
  end
  if waits and for_ever == '0' then
    -- Both together: the one without the other makes Redisson fail or wait for ever.
    redis.call('PEXPIRE', queue, KEPT_MS)
    redis.call('PEXPIRE', timeouts, KEPT_MS)
  end
  if fields > 0 then
    return ttl
  end
  -- The head's turn may have come unnoticed, by an expiry or because the waiter before it has
  -- gone; some of Redisson's sleep until they are called.
  call_head(channel, head)
  local until_ms = redis.call('ZSCORE', waiters, head) or redis.call('ZSCORE', timeouts, head)
  return math.max(until_ms - now, 0)
end
