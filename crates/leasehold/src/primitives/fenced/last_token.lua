-- Returns the token that was given last.
--
-- counter  text: the last token
-- Returns  n    the token; 0 when none was given, or the counter no longer exists
--          text WRONGKIND: not a counter

local function last_token(counter)
  local last, wrong = last_given(counter)
  return last or wrong
end
