-- Says how many permits are free.
--
-- semaphore  text: the number of free permits
-- Returns    { n, there }  so many, negative when some are missing; there is 0 when there is
--                          no semaphore, else 1
--            text WRONGKIND: not a semaphore

local function available(semaphore)
  local free, other = number_at(semaphore)
  return other or { free or 0, free and 1 or 0 }
end
