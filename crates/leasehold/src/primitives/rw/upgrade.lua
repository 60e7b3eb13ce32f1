-- Grants the write lock to a holder of the read lock if there are no other readers. The read hold
-- remains, inside the new write hold.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- hold      the write hold's field
-- read      the read hold's field
-- lease_ms  how long the write hold lasts without renewal
-- Returns   nil  granted; a repeated request changes nothing
--           n    there are other readers, or the read hold does not exist, and the lock lasts for
--                n ms more; -1 without expiry
--           text WRONGKIND: not a read-write lock

local function upgrade(lock, hold, read, lease_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  if mode == 'write' and redis.call('HEXISTS', lock, hold) == 1 then
    return false
  end
  local ttl = redis.call('PTTL', lock)
  local fields = redis.call('HGETALL', lock)
  local alone, mine = mode == 'read', false
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if alone and count and remaining_ms(lock, fields[n], count) >= 0 then
      mine = mine or fields[n] == read
      alone = fields[n] == read
    end
  end
  if not alone or not mine then
    -- If the lock no longer exists, the reply is 0: a negative number would mean a lock without
    -- expiry.
    return ttl == -2 and 0 or ttl
  end
  -- Fields of dead readers would look like read holds inside this write hold.
  for n = 1, #fields, 2 do
    if fields[n] ~= 'mode' and fields[n] ~= read then redis.call('HDEL', lock, fields[n]) end
  end
  if ttl < tonumber(lease_ms) then redis.call('PEXPIRE', lock, lease_ms) end
  redis.call('HSET', lock, 'mode', 'write', hold, '1')
  return false
end
