-- Returns the holders of one side, read or write, and the time until the lock expires. Omits read
-- holds that have ended, although their fields still exist.
--
-- lock     hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--          `uuid:n:write`
-- side     read or write; a writer that also reads holds both
-- Returns  { ttl, holder, count, ... }  ttl in ms, -1 without expiry
--          { -2 }                       no holders
--          text WRONGKIND: not a read-write lock

local function inspect(lock, side)
  local mode = redis.call('HGET', lock, 'mode')
  local other = wrong_kind('a read-write lock', lock, redis.call('HLEN', lock), mode)
  if other then
    return other
  end
  local reply = { redis.call('PTTL', lock) }
  if mode == 'write' or mode == side then
    local fields = redis.call('HGETALL', lock)
    for n = 1, #fields, 2 do
      local field, count = fields[n], tonumber(string.match(fields[n + 1], '^%d+$'))
      local writes = string.find(field, ':write', 1, true) ~= nil
      if field ~= 'mode' and count and writes == (side == 'write')
        and (writes or remaining_ms(lock, field, count) >= 0) then
        reply[#reply + 1] = field
        reply[#reply + 1] = fields[n + 1]
      end
    end
  end
  return #reply > 1 and reply or { -2 }
end
