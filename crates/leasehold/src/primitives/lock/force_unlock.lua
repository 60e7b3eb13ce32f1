-- Ends whoever's hold there is, and notes that it was ended by force.
--
-- lock     hash: one field per hold, `uuid:n`
-- marker   string: whose hold was ended by force; lives as long as the hold
--          would have, so that its holder learns the reason
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
    redis.pcall('SET', marker, holder, 'PX', ttl)
  end
  redis.pcall('PUBLISH', channel, '0')
  return 1
end
