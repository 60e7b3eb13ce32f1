-- Ends the current hold, notes that it was ended by force, and notifies the head of the line.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- marker    hash: a field per hold that was ended by force
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- Returns   1  unlocked
--           0  the lock was free
--           text WRONGKIND: not a fair lock; nothing was changed

local function force_unlock(lock, queue, timeouts, waiters, marker, channel)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local broken = break_hold(lock, marker)
  if broken == 1 and in_line > 0 then
    local now = now_ms()
    notify_head(channel, tidy(queue, timeouts, waiters, now, now))
  end
  return broken
end
