-- Defines `late`: the reply to an operation that does not run because its call arrived too late, or
-- false if the call is in time. Also defines `time`, the server's time, if it was read.
local late, time = false, nil
if ARGV[2] ~= '0' then
  time = redis.call('TIME')
  -- No client waits for this reply any more, so a grant would only keep the lock from all clients.
  -- The times are compared as texts first. That is cheaper than comparing numbers, and decides for
  -- a call that has more than a second left.
  if ARGV[2] <= time[1] .. '999' and time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2]) then
    late = { 'late', time[1] * 1000 + math.floor(time[2] / 1000) }
  end
end
