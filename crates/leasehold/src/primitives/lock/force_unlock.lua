-- Ends whoever's hold there is, and notes that it was ended by force.
--
-- lock     hash: one field per hold, `uuid:n`
-- marker   hash: a field per hold that was ended by force; lives as long as the
--          holds would have, so that their holders learn the reason
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  unlocked
--          0  it was free
--          text WRONGKIND: not a plain lock; nothing was changed

local function force_unlock(lock, marker, channel)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return 0
  end
  local other = foreign(lock, fields)
  if other then
    return other
  end
  local holder = redis.call('HKEYS', lock)[1]
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- Only a courtesy: it fails when the server is out of memory.
    -- A name that is broken again and again must not fill the memory.
    local size = redis.pcall('HLEN', marker)
    local noted = type(size) == 'number' and size < 64
      and redis.pcall('HSET', marker, holder, '1')
    if type(noted) == 'number' and redis.call('PTTL', marker) < ttl then
      local expiry = redis.pcall('PEXPIRE', marker, ttl)
      if type(expiry) == 'table' then redis.pcall('DEL', marker) end
    end
  end
  redis.pcall('PUBLISH', channel, '0')
  return 1
end
