-- Ends this write hold and wakes all waiters but our writers, of which it calls one. Read holds
-- that its owner took inside it stay, and others may read beside them: then it calls nobody.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--          `uuid:n:write`
-- asking   list: the clients to call, `number:1`, in the order in which they came
-- hold     this hold's field
-- channel  where the waiters listen. Redisson says nothing there when read holds stay, and
--          its own readers then wait for the expiry.
-- Returns  1 + n  released, and n connections were told
--          0      not ours any more; nothing was changed

local function release_write(lock, asking, hold, channel)
  -- HDEL first: it works when the server is out of memory, and the server then runs the others too.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  if redis.call('HLEN', lock) > 1 then
    redis.call('HSET', lock, 'mode', 'read')
  end
  local is_free = trim_expiry(lock)
  local told = wake_all(channel)
  -- Right after the messages: clients that are called by their numbers ignore those messages.
  if is_free and told > 0 then call_first(asking, channel) end
  return 1 + told
end
