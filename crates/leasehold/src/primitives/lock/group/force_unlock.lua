-- Ends the current holds of these values, and notes that they were ended by force.
--
-- group    hash: for each value `f` its holder, and two more fields
-- marker   hash: a field per hold that was ended by force; lives as long as the holds would have,
--          so that their holders learn the reason
-- channel  where the waiters listen
-- fields   the values' fields, separated by spaces
-- Returns  1  at least one value was held
--          0  all values were free
--          text WRONGKIND: not a group of locks; nothing was changed

local function force_unlock(group, marker, channel, fields)
  local size = redis.call('HLEN', group)
  if size == 0 then
    return 0
  end
  local other = wrong_kind('a group lock', group, size)
  if other then
    return other
  end
  local now, ended, marked_ms = now_ms(), 0, redis.call('PTTL', marker)
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    if holder then
      local left = (ends_at(group, f, holder) or 0) - now
      redis.call('HDEL', group, f)
      remove(group, f, holder)
      if left >= 0 then
        ended = 1
        -- The note is only a courtesy to the holder: writing it fails when the server is out of
        -- memory. At most 64 notes, so that a name that is unlocked by force again and again does
        -- not fill the memory.
        local noted = redis.pcall('HLEN', marker)
        noted = type(noted) == 'number' and noted < 64 and redis.pcall('HSET', marker, holder, '1')
        if type(noted) == 'number' and marked_ms < math.max(left, 1) then
          marked_ms = math.max(left, 1)
          local expiry = redis.pcall('PEXPIRE', marker, marked_ms)
          if type(expiry) == 'table' then redis.pcall('DEL', marker) end
        end
      end
    end
  end
  trim_expiry(group)
  wake_all(channel)
  return ended
end
