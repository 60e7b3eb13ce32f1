-- Grants all values of a group to this hold if every value is free, with a lease.
--
-- group     hash: for each value `f` its holder, `f:holder:expire_time` in ms of the server's
--           clock and `f:holder:lock_count`
-- hold      this hold's id, `uuid:n`
-- lease_ms  how long the hold lasts without renewal
-- fields    the values' fields, separated by spaces
-- Returns   nil  granted; a repeated request changes nothing
--           n    another hold has one of the values for n ms more
--           text WRONGKIND: not a group of locks

local function acquire(group, hold, lease_ms, fields)
  local size = redis.call('HLEN', group)
  if size > 0 then
    --[[USES wrong_kind]]
    local other = wrong_kind('a group lock', group, size)
    if other then
      return other
    end
  end
  local now, busy_ms, dead = now_ms(), 0, {}
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    if holder == hold then
      -- The first copy of this request took all the values. A value that was lost since is not
      -- taken again.
      return false
    end
    if holder then
      local ends = ends_at(group, f, holder)
      if ends and ends >= now then
        busy_ms = math.max(busy_ms, ends - now, 1)
      else
        dead[#dead + 1] = { f, holder }
      end
    end
  end
  if busy_ms > 0 then
    return busy_ms
  end
  -- Read before the first write, because an ACL may deny it.
  local ttl = redis.call('PTTL', group)
  local ends = string.format('%.0f', now + lease_ms)
  for f in string.gmatch(fields, '%S+') do
    local pair = f .. ':' .. hold
    redis.call('HSET', group, f, hold, pair .. ':expire_time', ends, pair .. ':lock_count', '1')
  end
  local life = life_ms(lease_ms)
  if size == 0 or (ttl >= 0 and ttl < tonumber(life)) then
    local expiry = redis.pcall('PEXPIRE', group, life)
    if type(expiry) == 'table' then
      -- Fields of a key without expiry would outlive their holder.
      for f in string.gmatch(fields, '%S+') do
        remove(group, f, hold)
        redis.call('HDEL', group, f)
      end
      return expiry.err
    end
  end
  for _, one in ipairs(dead) do
    remove(group, one[1], one[2])
  end
  -- The values of other dead holders would stay for as long as the group is in use. To keep them
  -- few, each acquire checks a few fields at a changing position in the hash.
  if size > 48 then
    local some = redis.pcall('HSCAN', group, now % 1048576, 'COUNT', 8)[2] or {}
    for n = 1, #some, 2 do
      local f, holder = string.match(some[n], '^([^:]+):(.+):expire_time$')
      if f and (tonumber(some[n + 1]) or 0) < now then
        if redis.call('HGET', group, f) == holder then
          redis.pcall('HDEL', group, f)
        end
        remove(group, f, holder)
      end
    end
  end
  return false
end
