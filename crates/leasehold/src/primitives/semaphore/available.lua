-- Returns how many permits are free.
--
-- semaphore  text: the number of free permits
-- Returns    { n, exists }  n is negative when permits are missing; exists is 0 if the semaphore
--                           does not exist, else 1
--            text WRONGKIND: not a semaphore

local function available(semaphore)
  local free, other = number_at(semaphore)
  return other or { free or 0, free and 1 or 0 }
end
