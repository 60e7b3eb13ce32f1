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
-- the lock is free then, either grants it to the head of the line or notifies the head. The head is
-- granted the lock if it belongs to the same client and this hold had the lock.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- hold      this hold's field, and its name in line
-- channel   the part before `:uuid:n` in the name of each waiter's channel; the message
--           is "0", as Redisson sends it, and is not sent without a waiter
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
  -- HDEL first: it works when the server is out of memory.
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
