-- Frees the lock if this hold still has it, and wakes the waiters.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1 + n  released, and n connections got the message
--          0      this hold's lease ran out; nothing was changed

local function release(lock, hold, channel)
  -- HDEL, not HINCRBY: it works when the server is out of memory. The hash is deleted with its last
  -- field.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  -- Published by the same script: if a client sent two commands and died between them, every waiter
  -- would sleep until its next poll. An ACL may deny the channel.
  local receivers = redis.pcall('PUBLISH', channel, '0')
  return 1 + (type(receivers) == 'number' and receivers or 0)
end
