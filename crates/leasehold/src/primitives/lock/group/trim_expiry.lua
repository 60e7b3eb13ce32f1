-- Runs after a hold has ended. Removes the values of dead holders, and lets the group end with its
-- last hold, whose lease may be shorter. A group of many fields is swept when it is acquired
-- instead, and ends with the longest lease that it has seen.
local function trim_expiry(group)
  local size = redis.pcall('HLEN', group)
  if type(size) ~= 'number' or size == 0 or size > 48 then
    return
  end
  local all, now, longest = redis.pcall('HGETALL', group), now_ms(), -1
  for n = 1, #all, 2 do
    local f, holder = string.match(all[n], '^([^:]+):(.+):expire_time$')
    local left = f and (tonumber(all[n + 1]) or 0) - now
    if f and left < 0 then
      -- If the value already has another holder, it is not removed.
      if redis.call('HGET', group, f) == holder then
        redis.pcall('HDEL', group, f)
      end
      remove(group, f, holder)
    elseif f then
      longest = math.max(longest, left, 1)
    end
  end
  local life = longest > 0 and life_ms(longest)
  if life and redis.call('PTTL', group) > tonumber(life) then
    redis.pcall('PEXPIRE', group, life)
  end
end

