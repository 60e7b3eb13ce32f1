-- Ends this write hold. Wakes all waiters except our writers, and calls one of our writers. Read
-- holds that its owner took inside it stay, and other readers may enter beside them; in that case
-- no writer is called.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- asking   list: the clients to call, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen. Redisson publishes nothing there when read holds stay,
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
  -- Right after the messages: clients that are called by their numbers ignore those messages.
  if is_free and receivers > 0 then notify_first(asking, channel) end
  return 1 + receivers
end
