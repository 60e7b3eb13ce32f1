-- Publishes once more that the latch is open. Publishes nothing if the latch has been set again,
-- because Redisson's waiters would ask all the time until the next message.
--
-- latch    text: the count
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  published
--          0  the latch is not open; nothing was published
--          text WRONGKIND: not a latch

local function republish(latch, channel)
  local count, other = number_at(latch)
  if other then
    return other
  end
  if (count or 0) > 0 then
    return 0
  end
  redis.pcall('PUBLISH', channel, '0')
  return 1
end
