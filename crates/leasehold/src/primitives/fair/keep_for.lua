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
  -- The head must ask again to learn the new end. The waiters behind it wait for its release.
  if is_sooner then
    notify_head(channel, head)
  end
  return 1
end
