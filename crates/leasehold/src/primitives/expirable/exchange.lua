-- Puts other permits into the place of these, for the next waiter of their process: without a
-- count and without a message, because no permit becomes free.
--
-- permits   text: the number of free permits
-- timeout   sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- ids       the ids, one after the other
-- next      the ids of the others, as many
-- lease_ms  how long those last
-- Returns   1  done; a request that comes a second time changes nothing
--           0  one was not held any more, or more are in use than there are; nothing was changed
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
  -- ZADD alone is refused when the server is out of memory; behind a write that is not, it
  -- works. The others come first: an ACL may deny ZADD, and permits that were taken out and not
  -- counted would be gone for ever.
  redis.call('ZREM', timeout, '')
  for at = 1, #next, 16 do
    redis.call('ZADD', timeout, math.min(now + lease_ms, NEVER - 1), string.sub(next, at, at + 15))
  end
  redis.call('ZREM', timeout, unpack(members))
  return 1
end
