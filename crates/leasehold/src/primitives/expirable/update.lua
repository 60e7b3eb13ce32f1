-- Sets a new lease for a permit, longer or shorter than before.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking    list: the waiting clients, `number:permits`, in the order in which they asked
-- id        the permit's id
-- lease_ms  how long it lasts from now
-- channel   where the waiters listen; the message is the number of free permits
-- Returns   1  set
--           0  its lease is over, or the permit does not exist
--           text WRONGKIND: not a semaphore; nothing was changed

local function update(permits, timeout, asking, id, lease_ms, channel)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now = now_ms()
  reclaim(permits, timeout, asking, channel, now)
  local member, score = find(timeout, id)
  if not score or score <= now then
    return 0
  end
  redis.call('ZREM', timeout, '')
  redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), member)
  return 1
end
