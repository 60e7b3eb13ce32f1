local function not_a_counter(counter)
  return 'WRONGKIND a lock whose fencing counter (' .. counter .. ') is not a number below 2^53'
end
-- Reads the last token that was given, 0 if there was none; nil and an error text if `counter` is
-- not a counter.
local function last_given(counter)
  local last = redis.pcall('GET', counter) or '0'
  if type(last) == 'table' then
    if not string.find(last.err, 'WRONGTYPE', 1, true) then return nil, last.err end
  elseif string.match(last, '^%d+$') then
    return tonumber(last)
  end
  return nil, not_a_counter(counter)
end
-- Gives the next token: greater than the last one, and at least the server's time in
-- microseconds, so that tokens keep rising when the counter was lost.
local function next_token(counter)
  local last, wrong = last_given(counter)
  if not last then return nil, wrong end
  -- Lua's numbers are not exact above 2^53.
  if last >= 9007199254740991 then return nil, not_a_counter(counter) end
  -- `call.lua` may have read the time already.
  time = time or redis.call('TIME')
  return math.max(last + 1, time[1] * 1000000 + time[2])
end
-- Stores the token as digits: Java could not continue from a number with an exponent.
local function note(counter, token, counter_ms)
  redis.call('SET', counter, string.format('%.0f', token))
  if counter_ms ~= '0' then
    redis.call('PEXPIRE', counter, counter_ms)
  end
end
