-- Says who waits, first come first. Those of ours that are gone, and are still to be
-- taken out, are left out.
--
-- queue     list: the waiters
-- timeouts  zset: when Redisson takes each for gone
-- waiters   zset: until when each of ours counts as alive
-- Returns   a list of `uuid:n`
--           text WRONGKIND: not the line of a fair lock

local function line(queue, timeouts, waiters)
  local other, in_line = look(queue, timeouts, waiters)
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
