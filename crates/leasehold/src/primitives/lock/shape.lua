-- What stands in the way if `lock` is not a plain lock; false if it is one.
-- A plain lock has one field whose value is a count. Anything else belongs to
-- somebody else, and nothing here may change it.
local function not_a_lock(lock, fields)
  if fields == 1 and string.match(redis.call('HVALS', lock)[1], '^%d+$') then
    return false
  end
  if redis.call('HEXISTS', lock, 'mode') == 1 then
    return 'WRONGKIND a read-write lock'
  end
  return 'WRONGKIND a hash that is not a lock (' .. fields .. ' fields)'
end
