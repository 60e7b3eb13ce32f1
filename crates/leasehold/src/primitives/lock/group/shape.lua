-- How long a group lives whose last hold lasts `lease_ms` more: a moment longer. Redisson takes
-- a value over as its time ends, and does not lengthen the life of a key that has less than a
-- millisecond left. The hold that has just begun would go with the key.
local function life_ms(lease_ms)
  return string.format('%.0f', lease_ms + 100)
end

-- When `holder` ceases to have the value `f`; nil if it has none.
local function ends_at(group, f, holder)
  return tonumber(redis.call('HGET', group, f .. ':' .. holder .. ':expire_time') or '')
end

-- Removes what stands beside the value. An ACL may deny it; then it goes with the group.
local function remove(group, f, holder)
  local pair = f .. ':' .. holder
  redis.pcall('HDEL', group, pair .. ':expire_time', pair .. ':lock_count')
end
