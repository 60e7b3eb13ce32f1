-- Replaces these permits with new ones, for the next waiter of their process. It changes no count
-- and sends no message, because no permit becomes free.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- ids       the ids of these permits, one after the other
-- next      the ids of the new permits, the same number
-- lease_ms  how long the new permits last
-- Returns   1  done; a repeated request changes nothing
--           0  a permit was no longer held, or more are in use than exist; nothing was changed
--           text WRONGKIND: not a semaphore; nothing was changed

local function exchange(permits, timeout, ids, next, lease_ms)
  local free, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  if redis.call('ZSCORE', timeout, string.sub(next, 1, 16)) then
    return 1
  end
  if (free or 0) < 0 then
    return 0
  end
  local now, members = now_ms(), {}
  for at = 1, #ids, 16 do
    local member, score = find(timeout, string.sub(ids, at, at + 15))
    if not score or score <= now then
      return 0
    end
    members[#members + 1] = member
  end
  -- ZADD alone is refused when the server is out of memory. After a write that is not refused, it
  -- succeeds. The new permits are added first: an ACL may deny ZADD, and permits that were removed
  -- but not counted would be lost forever.
  redis.call('ZREM', timeout, '')
  for at = 1, #next, 16 do
    redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), string.sub(next, at, at + 15))
  end
  redis.call('ZREM', timeout, unpack(members))
  return 1
end
