-- Says which token was given last.
--
-- counter  text: the last token
-- Returns  n    the token; 0 when none was given, or the counter is gone
--          text WRONGKIND: not a counter

local function last_token(counter)
  local last = redis.call('GET', counter) or '0'
  if not string.match(last, '^%d+$') then
    return 'WRONGKIND a fencing counter that is not a number below 2^53'
  end
  return tonumber(last)
end
