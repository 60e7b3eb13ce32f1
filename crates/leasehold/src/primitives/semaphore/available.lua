-- Says how many permits are free.
--
-- semaphore  text: the number of free permits
-- Returns    n  so many; 0 when there is no semaphore, negative when some are missing
--            text WRONGKIND: not a semaphore

local function available(semaphore)
  local free, other = number_at(semaphore)
  return other or free or 0
end
