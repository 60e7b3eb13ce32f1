-- Returns the waiters in order of arrival. Omits our waiters that are dead but not yet removed.
--
-- queue     list: the waiters
-- timeouts  zset: the time from which Redisson counts each waiter as dead
-- waiters   zset: our waiters, each with the time until which it counts as alive
-- Returns   a list of `uuid:n`
--           text WRONGKIND: not the line of a fair lock

local function list_waiters(queue, timeouts, waiters)
  local other, in_line = check_keys(queue, timeouts, waiters)
  if other then
    return other
  end
  local alive = {}
  if in_line == 0 then
    return alive
  end
  local now = now_ms()
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local until_ms = tonumber(redis.call('ZSCORE', waiters, waiter))
    if not until_ms or until_ms > now then
      alive[#alive + 1] = waiter
    end
  end
  return alive
end
