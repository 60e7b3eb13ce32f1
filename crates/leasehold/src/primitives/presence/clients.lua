-- Lists the clients that announce themselves.
--
-- clients  sorted set: the clients, each with the time (ms) until which its entry is valid
-- most     the most clients that are listed
-- Returns  a list of ids

local function clients(clients, most)
  local after = string.format('(%.0f', now_ms())
  local some = redis.pcall('ZRANGEBYSCORE', clients, after, '+inf', 'LIMIT', 0, most)
  if some.err then
    return {}
  end
  for n = 1, #some do
    some[n] = string.sub(some[n], 1, 64)
  end
  return some
end
