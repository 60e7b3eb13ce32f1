-- Returns how many ms the read hold `field` lasts; less than 0 if it has ended although its field
-- still exists. In Redisson a hold may be acquired several times (`count`), and each time has a key
-- of its own, numbered from 1. The hold has ended when none of these keys exists. A key without
-- expiry lasts as long as the lock.
local function remaining_ms(lock, field, count)
  local stem = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local longest = -2
  -- No real hold is acquired 1000 times, and a count of a billion would block the server.
  for n = 1, math.min(count, 1000) do
    local ttl = redis.call('PTTL', stem .. ':' .. field .. ':rwlock_timeout:' .. n)
    if ttl == -1 then ttl = redis.call('PTTL', lock) end
    if ttl > longest then longest = ttl end
  end
  return longest
end
