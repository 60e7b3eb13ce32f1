-- Frees the lock if this hold still has it, or takes its place out of the line, and
-- calls the head if the lock is free.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: when Redisson takes each for gone
-- waiters   zset: until when each of ours counts as alive
-- hold      this hold's field, and its name in line
-- channel   what is before `:uuid:n` in the name of each waiter's channel; the message
--           is "0", as Redisson sends it, and there is none without a waiter
-- Returns   1  released
--           0  it had not the lock; if it was in line, it is not any more
--           text WRONGKIND: not a fair lock; nothing was changed

local function release(lock, queue, timeouts, waiters, hold, channel)
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
  if redis.call('ZSCORE', timeouts, hold) or redis.call('ZSCORE', waiters, hold) then
    take_out(queue, timeouts, waiters, { hold }, free_at)
  end
  local head = tidy(queue, timeouts, waiters, now, free_at)
  if ttl == -2 then
    call_head(channel, head)
  end
  return released
end
