local function join(queue, timeouts, waiters, hold, now, free_at, place_ms)
  local timeout = free_at + ALLOWANCE_MS * (redis.call('LLEN', queue) + 1)
  if is_shared(queue, waiters) then
    local last = redis.call('LINDEX', queue, -1)
    local before = last and tonumber(redis.call('ZSCORE', timeouts, last))
    timeout = math.max(before or 0, free_at) + ALLOWANCE_MS
  end
  redis.call('ZADD', timeouts, timeout, hold)
  local pushed = redis.pcall('RPUSH', queue, hold)
  -- An ACL may deny it. An entry that is only in the set would make Redisson wait for ever.
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
--           lengthens the lease, because the holder counts from the request that was answered
-- place_ms  how long the place is kept unless the waiter asks again; 0 to take no place
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- for_ever  0 if a line in which no waiter asks may expire; 1 if waiters of Redisson may
--           be in it, which do not ask and rely on the line
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
      -- Written even if nothing changes: a client that waits for replicas waits for this write.
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
    -- Before dead waiters are removed: this waiter has just asked, so it is alive.
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
    -- Both keys must expire together: one without the other makes Redisson fail or wait for ever.
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
