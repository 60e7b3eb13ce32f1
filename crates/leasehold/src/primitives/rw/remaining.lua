-- How long the read hold `field` has left, of which Redisson counts `count`: each has
-- a key of its own, numbered from 1. Below 0 when none is there; that hold is over,
-- although its field still stands. A key without expiry counts as much as there is.
local function remaining_ms(lock, field, count)
  local stem = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local longest = -2
  -- Nobody nests that deep; a count of a billion would stop the server.
  for n = 1, math.min(count, 1000) do
    local ttl = redis.call('PTTL', stem .. ':' .. field .. ':rwlock_timeout:' .. n)
    if ttl == -1 then ttl = redis.call('PTTL', lock) end
    if ttl > longest then longest = ttl end
  end
  return longest
end
