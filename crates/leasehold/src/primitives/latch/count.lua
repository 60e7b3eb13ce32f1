-- Returns the remaining count, and when the latch was last open.
--
-- latch    text: the count
-- opened   text: when the latch was last open, in ms of the server's clock
-- Returns  { count, last }  count is 0 if the latch is open; last is 0 if it is not known
--          text WRONGKIND: not a latch

local function count(latch, opened)
  local exists, other = number_at(latch)
  if other then
    return other
  end
  return { math.max(exists or 0, 0), last_opened(opened) }
end
