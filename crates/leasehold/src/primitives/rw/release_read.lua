-- Ends this read hold, and wakes the waiters if it was the last one.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--          `uuid:n:write`
-- timeout  this hold's own key, whose expiry is the end of its lease
-- hold     this hold's field
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  released
--          0  not ours any more: its lease had run out

local function release_read(lock, timeout, hold, channel)
  -- HDEL and DEL, not HINCRBY: they work when the server is out of memory.
  local stood = redis.call('HDEL', lock, hold)
  local held = redis.call('DEL', timeout)
  if stood == 0 then
    return 0
  end
  local fields = redis.call('HLEN', lock)
  -- Beside a write hold its expiry is that one's: not to be touched.
  if fields > 1 and redis.call('HGET', lock, 'mode') == 'write' then
    return held
  end
  -- Going through thousands of readers at each release would keep the server busy for
  -- seconds when they leave together. Of many, one release in so many does it: until
  -- then the lock's expiry is later than it has to be, which harms nobody while somebody
  -- reads. The many may all be dead, though, and then a writer would wait for nobody.
  if fields > 64 then
    local turn = redis.call('TIME')[2] + (tonumber(string.match(hold, '%d+$')) or 0)
    if turn % fields >= 64 and longest_of_some(lock, 0) > 0 then
      return held
    end
  end
  if trim_expiry(lock) then redis.pcall('PUBLISH', channel, '0') end
  return held
end
