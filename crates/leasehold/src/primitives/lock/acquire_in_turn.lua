-- Takes the lock for this hold if it is free, and otherwise a place among the clients that wait
-- for it: a release calls one of them, and the others need not ask.
--
-- lock      hash: one field per hold, `uuid:n`
-- asking    list: the numbers of the clients to call, in the order in which they came
-- hold      this hold's field
-- lease_ms  how long it lasts without renewal
-- client    the number by which this client is called
-- called    1 if a release has called it, and somebody else was quicker
-- Returns   nil            granted; a request that comes a second time changes nothing
--           { n, before }  held by somebody else for n ms more, -1 without expiry; so many clients
--                          are called before this one, -1 if it is not called
--           text           WRONGKIND: not a plain lock

local function acquire_in_turn(lock, asking, hold, lease_ms, client, called)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    local refused = grant(lock, hold, lease_ms)
    if not refused then
      -- A client that has the lock is called in vain, and the one behind it too late.
      redis.pcall('LREM', asking, 0, client)
    end
    return refused
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    return false
  end
  --[[USES other_than]]
  local stranger = other_than('a plain lock', lock, fields)
  if stranger then
    return stranger
  end
  -- Every command may fail: an ACL may deny the list, and it may be somebody else's or not fit
  -- into memory. Then this client is not called, and asks at each message.
  local before = redis.pcall('LPOS', asking, client)
  if not before then
    if called == '1' then
      before = type(redis.pcall('LPUSH', asking, client)) == 'number' and 0
    else
      local length = redis.pcall('RPUSH', asking, client)
      before = type(length) == 'number' and length - 1
    end
  end
  -- Whoever waits asks now and then. What nobody asks for any more is forgotten.
  redis.pcall('PEXPIRE', asking, 4000)
  return { redis.call('PTTL', lock), type(before) == 'number' and before or -1 }
end
