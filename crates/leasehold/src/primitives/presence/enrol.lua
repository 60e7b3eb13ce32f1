-- Adds a client to the register of clients, or removes it. Removes entries that are no longer
-- valid.
--
-- clients  sorted set: the clients, each with the time (ms) until which its entry is valid
-- id       the client
-- ms       how long the entry is valid; 0 when the client ends
-- Returns  1

local function enrol(clients, id, ms)
  local now = now_ms()
  redis.call('ZREMRANGEBYSCORE', clients, '-inf', string.format('%.0f', now))
  if ms == '0' then
    redis.call('ZREM', clients, id)
    return 1
  end
  redis.call('ZADD', clients, string.format('%.0f', now + ms), id)
  redis.call('PEXPIRE', clients, ms)
  return 1
end
