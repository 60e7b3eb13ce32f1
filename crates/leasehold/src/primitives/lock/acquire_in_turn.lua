-- Takes the lock for this hold if it is free, and otherwise a place among the clients that wait
-- for it: a release calls one of them, and the others need not ask.
--
-- lock      hash: one field per hold, `uuid:n`
-- asking    list: the clients to call, `number:1`, in the order in which they came
-- hold      this hold's field
-- lease_ms  how long it lasts without renewal
-- client    this client, as in `asking`
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
      -- A call of a client that has the lock would be wasted, and delay the next client.
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
  return { redis.call('PTTL', lock), place_of(asking, client, called) }
end
