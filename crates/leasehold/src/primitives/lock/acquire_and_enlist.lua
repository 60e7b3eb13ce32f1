-- Grants the lock to this hold if it is free. Otherwise adds the client to the list of waiting
-- clients. A release notifies one of them, and the others need not ask.
--
-- lock      hash: one field per hold, `uuid:n`
-- asking    list: the clients to notify, each as `number:1`, in order of arrival
-- hold      this hold's field
-- lease_ms  how long the hold lasts without renewal
-- client    this client's item in `asking`
-- notified  1 if a release has notified this client, but another client was quicker
-- Returns   nil            granted; a repeated request changes nothing
--           { n, before }  another hold has the lock for n ms more, -1 without expiry; `before`
--                          clients are notified before this one, -1 if it is not in `asking`
--           text           WRONGKIND: not a plain lock

local function acquire_and_enlist(lock, asking, hold, lease_ms, client, notified)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    local refused = grant(lock, hold, lease_ms)
    if not refused then
      -- To notify a client that has the lock would be useless, and would delay the next client.
      redis.pcall('LREM', asking, 0, client)
    end
    return refused
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    return false
  end
  --[[USES wrong_kind]]
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  return { redis.call('PTTL', lock), clients_before(asking, client, notified) }
end
