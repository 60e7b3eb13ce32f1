-- Gives how long the group lives if its last hold lasts `lease_ms` more: a moment longer than the
-- hold. Redisson takes over a value when its time ends, but does not lengthen the life of a key
-- that expires within a millisecond. The new hold would then vanish with the key.
local function life_ms(lease_ms)
  return string.format('%.0f', lease_ms + 100)
end

-- Reads when the lease of `holder` on the value `f` ends; nil if it has none.
local function ends_at(group, f, holder)
  return tonumber(redis.call('HGET', group, f .. ':' .. holder .. ':expire_time') or '')
end

-- Removes the two fields that belong to the value. If an ACL denies it, they are removed with the
-- group.
local function remove(group, f, holder)
  local pair = f .. ':' .. holder
  redis.pcall('HDEL', group, pair .. ':expire_time', pair .. ':lock_count')
end
