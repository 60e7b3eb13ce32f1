-- The next fencing token: greater than the last one, and at least the server's time
-- in microseconds, so that tokens go on rising when the counter was lost.
local function next_token(counter)
  local last = redis.call('GET', counter) or '0'
  -- Beyond 2^53 a number is not exact here.
  if not string.match(last, '^%d+$') or tonumber(last) >= 9007199254740991 then
    return nil
  end
  local time = redis.call('TIME')
  return math.max(tonumber(last) + 1, time[1] * 1000000 + time[2])
end
