-- Redisson's expiry for a permit whose lease never ends.
local NEVER = 922337203685477

-- Checks that the leases are a sorted set that can be read. Gives false if they are, otherwise an
-- error.
local function not_a_semaphore(timeout)
  local size = redis.pcall('ZCARD', timeout)
  if type(size) ~= 'table' then
    return false
  end
  if string.find(size.err, 'WRONGTYPE', 1, true) then
    return 'WRONGKIND a semaphore whose leases are a ' .. redis.call('TYPE', timeout).ok
  end
  return size.err
end

-- Returns the set's member for a permit, and the end of its lease. Redisson 3.16.8 writes the id as
-- text.
local function find(timeout, id)
  local score = redis.call('ZSCORE', timeout, id)
  if score then
    return id, tonumber(score)
  end
  local text = string.gsub(id, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end)
  score = redis.call('ZSCORE', timeout, text)
  return text, score and tonumber(score)
end
