-- Makes these permits last for at least a lease from now.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- ids       the ids, one after the other
-- lease_ms  how long they last from now
-- most_ms   a permit with a longer remaining lease than this is shortened; 0: never
-- Returns   n  renewed, and n ms remain now
--           0  a permit is over; nothing was changed

local function renew(permits, timeout, ids, lease_ms, most_ms)
  local now, most = now_ms(), tonumber(most_ms)
  local ends, least = {}, NEVER
  for at = 1, #ids, 16 do
    local _, score = find(timeout, string.sub(ids, at, at + 15))
    if not score or score <= now then
      return 0
    end
    -- An earlier request can arrive after a later one that asked for more.
    if score < now + lease_ms or (most > 0 and score > now + most) then
      score = math.min(now + lease_ms, NEVER - 1)
    end
    ends[at], least = score, math.min(least, score)
  end
  -- ZADD alone is refused when the server is out of memory. After a write that is not refused, it
  -- succeeds.
  redis.call('ZREM', timeout, '')
  for at = 1, #ids, 16 do
    local member = find(timeout, string.sub(ids, at, at + 15))
    redis.call('ZADD', timeout, ends[at], member)
  end
  return least - now
end
