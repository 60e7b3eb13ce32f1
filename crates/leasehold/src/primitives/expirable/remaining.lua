-- Returns how much of a permit's lease remains.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- id       the permit's id
-- Returns  n   this number of ms
--          -1  it never ends: acquired by Redisson without a lease
--          -2  its lease is over, or the permit does not exist
--          text WRONGKIND: not a semaphore

local function remaining(permits, timeout, id)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now = now_ms()
  local _, score = find(timeout, id)
  if not score or score <= now then
    return -2
  end
  return score < NEVER and score - now or -1
end
