-- Ends this read hold. If it was the last one, wakes the waiters and notifies one of our writers.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- timeout  this hold's own key, whose expiry is the end of its lease
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  released
--          0  this hold's lease had run out

local function release_read(lock, timeout, asking, hold, channel)
  -- HDEL and DEL, not HINCRBY: they work when the server is out of memory.
  local existed = redis.call('HDEL', lock, hold)
  local held = redis.call('DEL', timeout)
  if existed == 0 then
    return 0
  end
  local fields = redis.call('HLEN', lock)
  -- If a write hold exists beside the read holds, the lock has the expiry of the write hold.
  -- (Redisson sets it to the expiry of the longest read hold even then, and so cuts the write hold
  -- short.)
  if fields > 1 and redis.call('HGET', lock, 'mode') == 'write' then
    return held
  end
  -- If each of thousands of releases checked all readers, the work would be quadratic. It would
  -- keep the server busy for seconds when many readers release together. So with more than 64
  -- fields, only one release in `fields` / 64 checks all readers, chosen by the time and the hold's
  -- number. Until then the lock expires later than necessary, which does no harm while there are
  -- live readers. But the other readers may all be dead, and then a writer would wait although
  -- there is no live hold. So each release checks a few.
  if fields > 64 then
    local sample = redis.call('TIME')[2] + (tonumber(string.match(hold, '%d+$')) or 0)
    if sample % fields >= 64 and longest_of_some(lock, 0) > 0 then
      return held
    end
  end
  if trim_expiry(lock) then
    local receivers = redis.pcall('PUBLISH', channel, '0')
    if type(receivers) == 'number' and receivers > 0 then notify_first(asking, channel) end
  end
  return held
end
