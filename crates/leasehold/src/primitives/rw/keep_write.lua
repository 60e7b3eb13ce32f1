-- Leaves this write hold to a lease of its own from now on, even if that is shorter. No renewal
-- changes it any more. While its owner reads inside it, the hash has to last as long as that, so the write hold is ended instead, as
-- `release_write.lua` does it.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the write hold's, `uuid:n:write`
-- hold     this hold's field
-- span_ms  how long it lasts from now
-- channel  where the waiters listen
-- Returns  1   it ends then
--          0   not ours any more; nothing was changed
--          -1  its owner reads inside it: the write hold is ended

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
  -- The waiters ask again, and learn the new end.
  if leave_to(span_ms, lock, hold) then
    wake_all(channel)
  end
  return 1
end
