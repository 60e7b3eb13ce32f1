-- Ends this write hold. Wakes all waiters except our writers, and notifies one of our writers. Read
-- holds that the owner has inside this hold remain, and other readers may enter beside them. In
-- that case no writer is notified.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen. Redisson publishes nothing there if read holds remain,
--          and its own readers then wait for the expiry.
-- Returns  1 + n  released, and n connections got the message
--          0      this hold no longer has the lock; nothing was changed

local function release_write(lock, asking, hold, channel)
  -- HDEL first: it works when the server is out of memory, and the server then runs the others too.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  if redis.call('HLEN', lock) > 1 then
    redis.call('HSET', lock, 'mode', 'read')
  end
  local is_free = trim_expiry(lock)
  local receivers = wake_all(channel)
  -- Right after those messages: clients in `asking` ignore them and wait for their number.
  if is_free and receivers > 0 then notify_first(asking, channel) end
  return 1 + receivers
end
