-- Makes this hold last for a lease from now at least, if it still has every value.
--
-- group     hash: per value `f` its holder, and two fields more
-- hold      this hold's id
-- lease_ms  how long it lasts from now
-- most_ms   a value that has more than that is made shorter; 0 for never
-- fields    the values' fields, with a space between two
-- Returns   n  renewed, and n ms are left now
--           0  one of them is not ours any more, or over; nothing was changed

local function renew(group, hold, lease_ms, most_ms, fields)
  local now, most, ends = now_ms(), tonumber(most_ms), {}
  for f in string.gmatch(fields, '%S+') do
    local at = redis.call('HGET', group, f) == hold and ends_at(group, f, hold)
    if not at or at < now then
      return 0
    end
    ends[f] = at
  end
  -- It removes nothing, and is what makes the server run the rest when it is out of
  -- memory: that is looked at once, before the first write.
  redis.pcall('HDEL', group, '')
  local ttl = redis.call('PTTL', group)
  local life = life_ms(lease_ms)
  if ttl >= 0 then
    -- Written in any case: whoever waits for replicas waits for what this has written.
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
