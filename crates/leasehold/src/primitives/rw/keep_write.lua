-- Makes this write hold end `span_ms` from now, even if that is sooner than before. No renewal
-- changes the end after that. If the owner also has a read hold inside this write hold, the hash
-- must last as long as the read hold. In that case the write hold ends at once, as in
-- `release_write.lua`.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- hold     this hold's field
-- span_ms  how long the hold lasts from now
-- channel  where the waiters listen
-- Returns  1   set
--          0   this hold no longer has the lock; nothing was changed
--          -1  its owner has a read hold inside it: the write hold has been ended

local function keep_write(lock, hold, span_ms, channel)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local fields = redis.call('HGETALL', lock)
  for n = 1, #fields, 2 do
    local field = fields[n]
    local count = field ~= 'mode' and field ~= hold and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count and remaining_ms(lock, field, count) >= 0 then
      redis.call('HDEL', lock, hold)
      redis.call('HSET', lock, 'mode', 'read')
      trim_expiry(lock)
      wake_all(channel)
      return -1
    end
  end
  -- The waiters must ask again to learn the new end.
  if keep_for_span(span_ms, lock, hold) then
    wake_all(channel)
  end
  return 1
end
