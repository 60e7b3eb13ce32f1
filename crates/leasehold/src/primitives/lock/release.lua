-- Frees the lock if this hold still has it, and wakes the waiters.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1 + n  released, and n connections were told
--          0      not ours: the lease ran out; nothing was changed

local function release(lock, hold, channel)
  -- HDEL, not HINCRBY: it works when the server is out of memory, and the
  -- hash goes with its last field.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  -- In the same script: a client that dies between the two would leave every
  -- waiter asleep until its next poll. An ACL may deny the channel.
  local told = redis.pcall('PUBLISH', channel, '0')
  return 1 + (type(told) == 'number' and told or 0)
end
