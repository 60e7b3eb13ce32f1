-- The waiters that are the next in line, if they are of one client: no more than a hold is handed
-- over to, one after the other.
local function run(queue, own, head)
  local next = { head }
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, 62)) do
    if string.sub(waiter, 1, #own) ~= own then break end
    next[#next + 1] = waiter
  end
  return next
end

-- Frees the lock if this hold still has it, or takes its place out of the line. If the lock is
-- free then, gives it to the head, if that is of the same client and this hold had the lock, or
-- calls the head.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: when Redisson takes each for gone
-- waiters   zset: until when each of ours counts as alive
-- hold      this hold's field, and its name in line
-- channel   what is before `:uuid:n` in the name of each waiter's channel; the message
--           is "0", as Redisson sends it, and there is none without a waiter
-- lease_ms  how long the head has the lock without renewal; 0 to call it only
-- own       what the ids of this client begin with
-- served    waiters to which this hold was handed over, and which are in line still; a space
--           is between two
-- Returns   1     released
--           0     it had not the lock; if it was in line, it is not any more
--           list  released, and the first of these has the lock; the others are the next in line,
--                 and of this client
--           text  WRONGKIND: not a fair lock; nothing was changed

local function release(lock, queue, timeouts, waiters, hold, channel, lease_ms, own, served)
  local other, in_line = look(queue, timeouts, waiters)
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
    take_out(queue, timeouts, waiters, gone, free_at)
  end
  local head = tidy(queue, timeouts, waiters, now, free_at)
  if ttl ~= -2 then
    return released
  end
  -- A release that comes again behind a failover must not grant what a failover guard keeps back.
  local is_own = head and string.sub(head, 1, #own) == own
  if released == 0 or lease_ms == '0' or not is_own --[[OR GUARDED]] then
    call_head(channel, head)
    return released
  end
  take_out(queue, timeouts, waiters, { head }, now + lease_ms)
  return grant(lock, head, lease_ms) or run(queue, own, head)
end
