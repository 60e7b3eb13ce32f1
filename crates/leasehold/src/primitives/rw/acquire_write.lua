-- Grants the lock to this hold alone if it is free, with a lease. Otherwise makes a reservation for
-- the waiting writer.
--
-- lock        hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--             `uuid:n:write`
-- writers     sorted set: our waiting writers, each with the end of its reservation
-- readers     sorted set: our readers that have waited for long, each with the end of its
--             reservation; they enter before this writer
-- asking      list: the clients to notify, each as `number:1`, in order of arrival
-- hold        this hold's field
-- lease_ms    how long the hold lasts without renewal
-- waiter      the id of the waiter in `writers`
-- reserve_ms  how long the reservation keeps our new readers out; 0 for no reservation
-- client      this client's item in `asking`; empty if no release notifies it
-- notified    1 if a release has notified this client, but another client was quicker
-- Returns     nil            granted; a repeated request changes nothing
--             { n, before }  kept out for n ms more, -1 without expiry; `before` clients are
--                            notified before this one, -1 if it is not in `asking`
--             text           WRONGKIND: not a read-write lock

local function acquire_write(lock, writers, readers, asking, hold, lease_ms, waiter, reserve_ms, client, notified)
  local mode = redis.call('HGET', lock, 'mode')
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a read-write lock', lock, fields, mode)
    if other then
      return other
    end
  end
  local wait = redis.call('PTTL', lock)
  if mode == 'read' and wait > 0 and fields > 64 then
    -- With more than 64 fields, the lock may still have the expiry of a reader that has released it
    -- (`release_read.lua`). If the other readers are dead, this writer would wait although there is
    -- no live hold.
    --[[USES longest_of_some]]
    wait = longest_of_some(lock, math.huge)
    if wait == 0 then
      mode = not trim_expiry(lock) and mode
      wait = redis.call('PTTL', lock)
    end
  end
  -- If the lock is free, readers with a reservation go first.
  local reserved = mode and 0 or reserved_for(readers)
  if reserved > 0 then
    wait = reserved
  elseif not mode then
    redis.call('HSET', lock, 'mode', 'write', hold, '1')
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      local gone = redis.pcall('DEL', lock)
      if type(gone) == 'table' then redis.call('HDEL', lock, 'mode', hold) end
      return expiry.err
    end
    -- This writer has entered. Its reservation would keep readers out after its release.
    if reserve_ms ~= '0' then redis.pcall('ZREM', writers, waiter) end
    -- To notify a client that has the lock would be useless, and would delay the next client.
    if client ~= '' then redis.pcall('LREM', asking, 0, client) end
    return false
  end
  if redis.call('HEXISTS', lock, hold) == 1 then
    -- The first copy of this request set the lease, and a renewal may have lengthened it since.
    return false
  end
  reserve(writers, waiter, reserve_ms)
  return { wait, client ~= '' and clients_before(asking, client, notified) or -1 }
end
