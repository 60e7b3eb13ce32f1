-- Makes this hold end `span_ms` from now, even if that is sooner than before. No renewal changes
-- the end after that.
--
-- lock     hash: one field per hold, `uuid:n`
-- hold     this hold's field
-- span_ms  how long the hold lasts from now
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  set
--          0  this hold no longer has the lock; nothing was changed

local function keep_for(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- The waiters must ask again to learn the new end. The message contains no client's number, so
  -- all of them ask. An ACL may deny the channel.
  if keep_for_span(span_ms, lock, hold) then
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end
