-- Enters a client in the register of clients.
--
-- clients  sorted set: the clients, each with the time (ms) until which it is believed
-- id       the client
-- ms       how long the entry is believed; 0 when the client ends
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
