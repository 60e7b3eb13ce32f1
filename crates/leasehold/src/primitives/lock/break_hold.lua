-- Ends the current hold of a plain lock, and notes in `marker` that it was ended by force. Returns
-- 1 if there was a hold, 0 if not, or an error text.
local function break_hold(lock, marker)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return 0
  end
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  local holder = redis.call('HKEYS', lock)[1]
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- The note is only a courtesy to the holder: writing it fails when the server is out of memory.
    -- There are at most 64 notes, so that a name whose holds are often ended by force does not fill
    -- the memory.
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
