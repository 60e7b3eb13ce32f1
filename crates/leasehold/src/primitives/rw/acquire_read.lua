-- Lets this hold read unless somebody else writes, with a lease.
--
-- lock      hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--           `uuid:n:write`
-- timeout   this hold's own key, whose expiry is the end of its lease
-- writers   sorted set: our waiting writers, each with the time its mark ends
-- readers   sorted set: our readers that have waited for long, in the same way
-- hold      this hold's field
-- within    the field of the write hold that its owner has, or nothing
-- lease_ms  how long it lasts without renewal
-- polite    1: it stays out while one of our writers waits, unless it has a mark; 2: the same,
--           and it leaves its mark while the lock is free as well
-- waiter    who waits, in `readers`
-- mark_ms   how long its mark keeps our writers out; 0 for no mark
-- Returns   nil  granted; a request that comes a second time changes nothing
--           n    kept out for n ms more; -1 without expiry
--           text WRONGKIND: not a read-write lock

local function acquire_read(lock, timeout, writers, readers, hold, within, lease_ms, polite, waiter, mark_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    --[[USES other_than]]
    local other = other_than('a read-write lock', lock, fields, mode)
    if other then
      return other
    end
  end
  if mode and redis.call('HEXISTS', lock, hold) == 1 and redis.call('EXISTS', timeout) == 1 then
    -- The first one set the lease, and it may have been made longer since.
    return false
  end
  if mode == 'write' then
    if within == '' or redis.call('HEXISTS', lock, within) == 0 then
      -- A writer has passed it: its mark keeps our next writers out until it had its turn.
      mark(readers, waiter, mark_ms)
      return redis.call('PTTL', lock)
    end
  elseif mark_ms ~= '0' and redis.pcall('ZREM', readers, waiter) == 1 then
    -- It left the mark while somebody wrote, so its turn comes before the next writer's.
  elseif polite ~= '0' then
    local rest = marked_for(writers)
    if rest > 0 then
      -- Beside readers it leaves no mark and lets one writer at least go first: that writer
      -- waits for them, and would never come. While the lock is free it asks again soon: a
      -- living writer comes at once, while the mark of a dead one may last for seconds. Writers
      -- that are quicker each time pass it for a while, and then it leaves its mark here too.
      if not mode and mark_ms ~= '0' then
        if polite == '2' then mark(readers, waiter, mark_ms) end
        rest = math.min(rest, 50)
      end
      return rest
    end
  end
  -- Its own key first: a field without it is no hold.
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', mode or 'read', hold, '1')
  local ttl = redis.call('PTTL', lock)
  -- Never shorter: other holds count on it. A lock whose expiry somebody has taken away stays
  -- without one.
  if not mode or (ttl >= 0 and ttl < tonumber(lease_ms)) then
    local expiry = redis.pcall('PEXPIRE', lock, lease_ms)
    if type(expiry) == 'table' then
      -- A lock without expiry would outlive its holder.
      redis.pcall('DEL', timeout)
      local gone = mode and redis.pcall('HDEL', lock, hold) or redis.pcall('DEL', lock)
      if type(gone) == 'table' then
        redis.call('HDEL', lock, 'mode', hold)
      end
      return expiry.err
    end
  end
  return false
end
