-- What stands in the way if `group` is not a group of locks; false if it is one, as far
-- as a few looks can tell. Anything else belongs to somebody else, and nothing here may
-- change it.
local function not_a_lock(group, size)
  -- The field of a value never stands alone: its end and its count are beside it.
  if size == 1 then
    return 'WRONGKIND a lock of one name, or a hash that is not a group of locks'
  end
  if redis.call('HEXISTS', group, 'mode') == 1 then
    return 'WRONGKIND a read-write lock'
  end
  return false
end

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
