-- Ends all holds of one side, read or write, and notes that they were ended by force.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- marker   hash: a field per hold that was ended by force; lives as long as the
--          holds would have, so that their holders learn the reason
-- side     read or write
-- channel  where the waiters listen
-- Returns  1  unlocked
--          0  the lock was free, or the other side has it
--          text WRONGKIND: not a read-write lock; nothing was changed

local function force_unlock(lock, marker, side, channel)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  if mode ~= side then
    return 0
  end
  local holders = redis.call('HKEYS', lock)
  local ttl = redis.call('PTTL', lock)
  redis.call('DEL', lock)
  if ttl > 0 then
    -- The notes are only a courtesy to the holders: writing them fails when the server is out of
    -- memory. There are at most 4096 notes, so that a name whose holds are often ended by force
    -- does not fill the memory.
    local size = redis.pcall('HLEN', marker)
    local room = type(size) == 'number' and 4096 - size or 0
    for n = 1, math.min(#holders, room) do
      if holders[n] ~= 'mode' and type(redis.pcall('HSET', marker, holders[n], '1')) == 'table' then
        break
      end
    end
    if room > 0 and redis.call('PTTL', marker) < ttl then
      local expiry = redis.pcall('PEXPIRE', marker, ttl)
      if type(expiry) == 'table' then redis.pcall('DEL', marker) end
    end
  end
  if side == 'write' then
    wake_all(channel)
  else
    redis.pcall('PUBLISH', channel, '0')
  end
  return 1
end
