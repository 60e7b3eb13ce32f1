-- Makes `late`: the reply to an operation that does not run because its call came too late; false if
-- it is in time. And `time`: what the server's clock said, if it was asked.
local late, time = false, nil
if ARGV[2] ~= '0' then
  time = redis.call('TIME')
  -- Nobody waits for this answer any more: a grant would be a lock for nobody. Compared as texts
  -- first, of digits alone: most calls have a second left, and numbers cost more.
  if ARGV[2] <= time[1] .. '999' and time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2]) then
    late = { 'late', time[1] * 1000 + math.floor(time[2] / 1000) }
  end
end
