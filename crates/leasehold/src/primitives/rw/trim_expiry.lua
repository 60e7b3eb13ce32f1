-- Adapts the hash to the remaining read holds, after a hold has ended. Sets its expiry to the end
-- of the longest read hold; if there is none, frees the lock and returns true. Removes the fields
-- of holds that have ended: otherwise they would accumulate in a lock that always has readers.
local function trim_expiry(lock)
  local fields, longest = redis.call('HGETALL', lock), 0
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then
      local rest = remaining_ms(lock, fields[n], count)
      if rest > longest then
        longest = rest
      elseif rest < 0 then
        redis.call('HDEL', lock, fields[n])
      end
    end
  end
  if longest > 0 then
    redis.call('PEXPIRE', lock, longest)
    return false
  end
  redis.call('DEL', lock)
  return true
end
