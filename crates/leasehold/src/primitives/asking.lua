-- The list of clients that wait for a lock: the numbers by which releases call them, in order of
-- arrival. Every command on the list may fail: an ACL may deny it, the key may belong to another
-- program, or there may be no memory for it. Then no client is called, and each client asks at each
-- message.

-- Returns how many clients are called before this waiting client; -1 if it is not called. `called`
-- is 1 if a release has called this client, and another client was quicker.
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
  -- Each waiter asks again within ten seconds. A list for which no client asks expires.
  local expiry = redis.pcall('PEXPIRE', asking, 12000)
  if type(expiry) == 'table' then
    -- A list without an expiry would stay for ever.
    redis.pcall('DEL', asking)
    return -1
  end
  return type(before) == 'number' and before or -1
end

-- Calls the first client of the list, right after the `0` of a release.
local function call_first(asking, channel)
  local first = redis.pcall('LPOP', asking)
  -- Redisson reads a number from each message, and ignores any number other than 0 and 1.
  if type(first) == 'string' and string.match(first, '^%d%d%d+$') then
    redis.pcall('PUBLISH', channel, first)
  end
end
