-- Leaves this hold to a lease of its own from now on, even if that is shorter. No renewal changes it
-- any more.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- span_ms  how long it lasts from now
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  it ends then
--          0  not ours any more; nothing was changed

local function keep_for(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- The waiters ask again, and learn the new end. Nobody is called by its number, so all ask. An ACL
  -- may deny the channel.
  if leave_to(span_ms, lock, hold) then
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end
