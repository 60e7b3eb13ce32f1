-- Ends this write hold and wakes all waiters. Read holds that its owner took inside it
-- stay, and others may read beside them.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--          `uuid:n:write`
-- hold     this hold's field
-- channel  where the waiters listen. Redisson says nothing there when read holds stay, and
--          its own readers then wait for the expiry.
-- Returns  1 + n  released, and n connections were told
--          0      not ours any more; nothing was changed

local function release_write(lock, hold, channel)
  -- HDEL first: it works when the server is out of memory, and so does what follows it.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  if redis.call('HLEN', lock) > 1 then
    redis.call('HSET', lock, 'mode', 'read')
  end
  trim_expiry(lock)
  return 1 + wake_all(channel)
end
