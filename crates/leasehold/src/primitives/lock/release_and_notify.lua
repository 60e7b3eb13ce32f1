-- Frees the lock as `release.lua` does, and notifies one of the clients that wait for it.
--
-- lock     hash: one field per hold, `uuid:n`
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it, followed by the
--          number of the client that is notified
-- Returns  1 + n  released, and n connections got the message
--          0      this hold's lease ran out; nothing was changed

local function release_and_notify(lock, asking, hold, channel)
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  local receivers = redis.pcall('PUBLISH', channel, '0')
  if type(receivers) ~= 'number' or receivers == 0 then
    return 1
  end
  notify_first(asking, channel)
  return 1 + receivers
end
