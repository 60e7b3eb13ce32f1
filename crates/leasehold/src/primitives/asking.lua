-- The clients that wait for a lock: a list of the numbers by which a release calls them, in the
-- order in which they came. Every command on it may fail: an ACL may deny the list, and it may be
-- somebody else's or not fit into memory. Then nobody is called, and each asks at each message.

-- How many clients are called before this one, which waits; -1 if it is not called. `called` is 1 if
-- a release has called it, and somebody else was quicker.
local function place_of(asking, client, called)
  local before = redis.pcall('LPOS', asking, client)
  if not before then
    if called == '1' then
      before = type(redis.pcall('LPUSH', asking, client)) == 'number' and 0
    else
      local length = redis.pcall('RPUSH', asking, client)
      before = type(length) == 'number' and length - 1
    end
  end
  -- Each waiter asks again within ten seconds. A list that no client asks for is forgotten.
  local expiry = redis.pcall('PEXPIRE', asking, 12000)
  if type(expiry) == 'table' then
    -- A list without an end would stay for ever.
    redis.pcall('DEL', asking)
    return -1
  end
  return type(before) == 'number' and before or -1
end

-- Calls the first of them, right behind the `0` of a release.
local function call_first(asking, channel)
  local first = redis.pcall('LPOP', asking)
  -- Redisson reads a number from each message, and does nothing for one that is not 0 or 1.
  if type(first) == 'string' and string.match(first, '^%d%d%d+$') then
    redis.pcall('PUBLISH', channel, first)
  end
end
