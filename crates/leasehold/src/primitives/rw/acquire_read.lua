-- Grants the read side to this hold, with a lease, unless another owner holds the write side.
--
-- lock        hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--             `uuid:n:write`
-- timeout     this hold's own key, whose expiry is the end of its lease
-- writers     sorted set: our waiting writers, each with the end of its reservation
-- readers     sorted set: our readers that have waited for long, each with the end of its
--             reservation
-- hold        this hold's field
-- inside      the field of the write hold of the same owner, or an empty text
-- lease_ms    how long the hold lasts without renewal
-- yields      0: this reader ignores waiting writers; 1: it lets one of our waiting writers go
--             first, unless it has a reservation; 2: like 1, but it also reserves a free lock
-- waiter      the id of the waiter in `readers`
-- reserve_ms  how long the reservation keeps our writers out; 0 for no reservation
-- Returns     nil  granted; a repeated request changes nothing
--             n    kept out for n ms more; -1 without expiry
--             text WRONGKIND: not a read-write lock

local function acquire_read(lock, timeout, writers, readers, hold, inside, lease_ms, yields, waiter, reserve_ms)
  local mode = redis.call('HGET', lock, 'mode')
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a read-write lock', lock, fields, mode)
    if other then
      return other
    end
  end
  if mode and redis.call('HEXISTS', lock, hold) == 1 and redis.call('EXISTS', timeout) == 1 then
    -- The first copy of this request set the lease, and a renewal may have lengthened it since.
    return false
  end
  if mode == 'write' then
    if inside == '' or redis.call('HEXISTS', lock, inside) == 0 then
      -- If this reader has waited for long (`reserve_ms` is not 0), it makes a reservation, which
      -- keeps our next writers out until the reader has entered.
      reserve(readers, waiter, reserve_ms)
      return redis.call('PTTL', lock)
    end
  elseif reserve_ms ~= '0' and redis.pcall('ZREM', readers, waiter) == 1 then
    -- This reader has a reservation, so it goes before the next writer.
  elseif yields ~= '0' then
    local rest = reserved_for(writers)
    if rest > 0 then
      -- While other readers hold the lock, this reader makes no reservation and lets at least one
      -- writer go first. That writer waits for those readers, and would otherwise never enter.
      -- While the lock is free, this reader asks again soon: a living writer enters at once, but
      -- the reservation of a dead writer may last for seconds. For a while, this reader lets
      -- quicker writers overtake it. After that (`yields` is 2), it makes its reservation here too.
      if not mode and reserve_ms ~= '0' then
        if yields == '2' then reserve(readers, waiter, reserve_ms) end
        rest = math.min(rest, 50)
      end
      return rest
    end
  end
  -- The hold's own key first: a field without its key is not a hold.
  redis.call('SET', timeout, '1', 'PX', lease_ms)
  redis.call('HSET', lock, 'mode', mode or 'read', hold, '1')
  local ttl = redis.call('PTTL', lock)
  -- Never shortened: other holds rely on the expiry. If another program has removed the lock's
  -- expiry, the lock remains without one.
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
