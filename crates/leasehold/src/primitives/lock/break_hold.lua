-- Ends whoever's hold there is, if this is a plain lock, and notes in `marker` that it
-- was ended by force: 1 if there was one, 0 if not, or what stands in the way.
local function break_hold(lock, marker)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return 0
  end
  local other = other_than('a plain lock', lock, fields)
  if other then
    return other
  end
  local holder = redis.call('HKEYS', lock)[1]
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- Only a courtesy to the holder: noting it fails when the server is out of memory. At most
    -- 64 of them: a name that is broken again and again must not fill the memory.
    local size = redis.pcall('HLEN', marker)
    local noted = type(size) == 'number' and size < 64
      and redis.pcall('HSET', marker, holder, '1')
    if type(noted) == 'number' and redis.call('PTTL', marker) < ttl then
      local expiry = redis.pcall('PEXPIRE', marker, ttl)
      if type(expiry) == 'table' then redis.pcall('DEL', marker) end
    end
  end
  return 1
end
