-- Returns the longest lease that was noted for this lock by clients that hold it with a majority.
-- Notes the client's own lease if that is longer.
--
-- longest  text: the longest lease, in ms; without expiry
-- own_ms   the longest lease of this client; 0 to note nothing
-- Returns  n    the longest lease that is noted now; 0 if none ever was
--          text WRONGKIND: not a number of ms

local function note_longest(longest, own_ms)
  local noted = redis.pcall('GET', longest) or '0'
  if type(noted) == 'table' then
    if not string.find(noted.err, 'WRONGTYPE', 1, true) then return noted.err end
    noted = ''
  end
  -- Lua's numbers are not exact above 2^53.
  if not string.match(noted, '^%d+$') or tonumber(noted) >= 9007199254740992 then
    return 'WRONGKIND a lock whose note of the longest lease (' .. longest .. ') is not a number of ms'
  end
  if tonumber(own_ms) > tonumber(noted) then
    redis.call('SET', longest, own_ms)
    noted = own_ms
  end
  return tonumber(noted)
end
