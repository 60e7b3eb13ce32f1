-- Grants the lock to this hold alone if it is free, with a lease. Otherwise leaves a mark that a
-- writer waits.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--           `uuid:n:write`
-- writers   sorted set: our waiting writers, each with the time its mark ends
-- readers   sorted set: our readers that have waited for long, each with the time its mark
--           ends; their turn is first
-- asking    list: the clients to call, each as `number:1`, in order of arrival
-- hold      this hold's field
-- lease_ms  how long the hold lasts without renewal
-- waiter    the id of the waiter in `writers`
-- reserve_ms   how long the mark keeps our new readers out; 0 for no mark
-- client    this client's item in `asking`; empty if no release calls it
-- notified  1 if a release has called this client, and another client was quicker
-- Returns   nil            granted; a repeated request changes nothing
--           { n, before }  kept out for n ms more, -1 without expiry; `before` clients are
--                          called before this one, -1 if this one is not called
--           text           WRONGKIND: not a read-write lock

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
    -- With so many readers, the lock may have the expiry of a reader that has left
    -- (`release_read`). If the other readers are dead, this writer would wait for no live hold.
    --[[USES longest_of_some]]
    wait = longest_of_some(lock, math.huge)
    if wait == 0 then
      mode = not trim_expiry(lock) and mode
      wait = redis.call('PTTL', lock)
    end
  end
  -- If the lock is free, readers that a writer has passed go first.
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
    -- This writer has had its turn. Its mark would keep readers out after its release.
    if reserve_ms ~= '0' then redis.pcall('ZREM', writers, waiter) end
    -- A call of a client that has the lock would be wasted, and delay the next client.
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
