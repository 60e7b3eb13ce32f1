-- Renews this hold if it still has every value: it lasts for at least `lease_ms` from now.
--
-- group     hash: for each value `f` its holder, and two more fields
-- hold      this hold's id
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- fields    the values' fields, separated by spaces
-- Returns   n  renewed, and n ms remain now
--           0  this hold has lost one of the values, or its lease is over; nothing was changed

local function renew(group, hold, lease_ms, most_ms, fields)
  local now, most, ends = now_ms(), tonumber(most_ms), {}
  for f in string.gmatch(fields, '%S+') do
    local at = redis.call('HGET', group, f) == hold and ends_at(group, f, hold)
    if not at or at < now then
      return 0
    end
    ends[f] = at
  end
  -- This removes nothing. It makes the server run the rest when it is out of memory: the server
  -- checks its memory only once, before the first write.
  redis.pcall('HDEL', group, '')
  local ttl = redis.call('PTTL', group)
  local life = life_ms(lease_ms)
  if ttl >= 0 then
    -- Written even if nothing changes: a client that waits for replicas waits for this write.
    redis.call('PEXPIRE', group, math.max(ttl, life))
  end
  local wanted, left = now + lease_ms, 0
  for f, at in pairs(ends) do
    if at < wanted or (most > 0 and at - now > most) then
      redis.call('HSET', group, f .. ':' .. hold .. ':expire_time', string.format('%.0f', wanted))
      at = wanted
    end
    left = math.max(left, at - now, 1)
  end
  return left
end
