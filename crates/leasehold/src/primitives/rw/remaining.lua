-- Finds how long the read hold `field` has left. Redisson counts it `count` times, and each count
-- has a key of its own, numbered from 1. Below 0 when no such key exists: then the hold is over,
-- although its field still exists. A key without expiry counts as the expiry of the lock.
local function remaining_ms(lock, field, count)
  local stem = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local longest = -2
  -- Holds are not nested that deep, and a count of a billion would block the server.
  for n = 1, math.min(count, 1000) do
    local ttl = redis.call('PTTL', stem .. ':' .. field .. ':rwlock_timeout:' .. n)
    if ttl == -1 then ttl = redis.call('PTTL', lock) end
    if ttl > longest then longest = ttl end
  end
  return longest
end
