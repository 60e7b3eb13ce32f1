-- Keeps the places of several waiters of one client. Gives no waiter a place and grants nothing, so
-- a request that arrives late does no harm.
--
-- lock      hash: one field per hold, `uuid:n`
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- holds     the names of the waiters in line, each after a space
-- place_ms  how long the places are kept unless the waiters ask again
-- channel   the part before `:uuid:n` in the name of each waiter's channel
-- for_ever  0 if a line in which no waiter asks may expire; 1 if waiters of Redisson may
--           be in it, which do not ask and rely on the line
-- Returns   a list: first, how long the lock is held or reserved for the head, as `fair.acquire`
--           returns it; then the numbers, from 1, of the waiters that must ask one by one, because
--           they have no place, or are the head of a free lock
--           text WRONGKIND: not the line of a fair lock

local function keep_places(lock, queue, timeouts, waiters, holds, place_ms, channel, for_ever)
  local other = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local now, ttl = now_ms(), redis.call('PTTL', lock)
  local free_at = now + math.max(ttl, 0)
  local in_line, scores, number_of, reply = {}, {}, {}, { ttl }
  local number = 0
  for hold in string.gmatch(holds, '%S+') do
    number = number + 1
    local timeout = redis.call('ZSCORE', timeouts, hold)
    if timeout then
      in_line[#in_line + 1], scores[#scores + 1] = hold, timeout
      number_of[hold] = number
    else
      reply[#reply + 1] = number
    end
  end
  if #in_line > 0 then
    refresh_places(queue, timeouts, waiters, in_line, scores, now, free_at, place_ms)
    if for_ever == '0' then
      redis.call('PEXPIRE', queue, IDLE_EXPIRY_MS)
      redis.call('PEXPIRE', timeouts, IDLE_EXPIRY_MS)
    end
  end
  if ttl ~= -2 then
    return reply
  end
  -- The head might not have been notified: a lease may have ended, or the waiter before the head
  -- may have given up. Dead waiters are not removed here: while a failover guard lasts, a waiter's
  -- own request does not keep its place.
  local head = redis.call('LINDEX', queue, 0)
  reply[1] = head and head_time_left(timeouts, waiters, head, now) or 0
  if number_of[head] then
    reply[#reply + 1] = number_of[head]
  else
    notify_head(channel, head)
  end
  return reply
end
