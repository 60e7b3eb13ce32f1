-- Frees the lock as `release.lua` does, and calls one of the clients that wait for it.
--
-- lock     hash: one field per hold, `uuid:n`
-- asking   list: the clients to call, `number:1`, in the order in which they came
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it, and behind it the
--          number of the client that is called
-- Returns  1 + n  released, and n connections were told
--          0      not ours: the lease ran out; nothing was changed

local function release_and_call(lock, asking, hold, channel)
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  local told = redis.pcall('PUBLISH', channel, '0')
  if type(told) ~= 'number' or told == 0 then
    return 1
  end
  call_first(asking, channel)
  return 1 + told
end
