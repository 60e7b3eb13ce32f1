-- How Redisson writes that a permit never ends.
local NEVER = 922337203685477

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What stands in the way where the leases should be; false when nothing does.
local function not_a_semaphore(timeout)
  local size = redis.pcall('ZCARD', timeout)
  if type(size) ~= 'table' then
    return false
  end
  if string.find(size.err, 'WRONGTYPE', 1, true) then
    return 'WRONGKIND a ' .. redis.call('TYPE', timeout).ok .. ' where the leases of permits should be'
  end
  return size.err
end

-- Frees permits that are in use. ZREM first: it works when the server is out of memory. Then
-- what an ACL may deny, before anything is changed: a permit that was taken out of the set and
-- not counted would be gone for ever.
local function give_back(permits, timeout, members, channel)
  redis.call('ZREM', timeout, '')
  redis.call('INCRBY', permits, 0)
  local removed = redis.call('ZREM', timeout, unpack(members))
  -- An asynchronous waiter of Redisson's that has slept to the end of a lease, which was renewed
  -- meanwhile, listens twice from then on, and a message that the first listener takes is lost.
  -- Some more messages find the waiter; else it would sleep to the end of the lease it knows.
  publish_free(channel, redis.call('INCRBY', permits, removed), removed + 8)
end

-- Takes back permits whose leases are over, some at a time: there can be any number.
local function reclaim(permits, timeout, channel, now)
  local ended = redis.call('ZRANGEBYSCORE', timeout, 0, now, 'LIMIT', 0, 1000)
  if #ended > 0 then give_back(permits, timeout, ended, channel) end
end

-- A number made of the ids of permits in use, of those whose leases end first: another one
-- when one of them was given back or acquired.
local function held(timeout)
  local sum = 0
  for _, id in ipairs(redis.call('ZRANGE', timeout, 0, 31)) do
    local first = 0
    for at = 1, 6 do first = first * 256 + (string.byte(id, at) or 0) end
    sum = sum + first
  end
  -- Exact: 32 times 48 bits are 53.
  return sum
end

-- How a permit stands in the set, and its end. Redisson 3.16.8 writes the id as text.
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
