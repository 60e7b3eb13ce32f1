-- Says what is left to count down, and when the latch was open last.
--
-- latch    text: the count
-- opened   text: when the latch was open last, in ms of the server's clock
-- Returns  { count, last }  0 when it is open; 0 when that is not known
--          text WRONGKIND: not a latch

local function count(latch, opened)
  local there, other = number_at(latch)
  if other then
    return other
  end
  return { math.max(there or 0, 0), last_opened(opened) }
end
