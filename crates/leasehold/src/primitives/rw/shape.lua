-- What stands in the way if `lock` is not a read-write lock; false if it is one, or
-- free. `mode` is its field of that name: a hash without it belongs to somebody else,
-- and Redisson would take it for a free lock.
local function not_a_lock(lock, mode)
  if mode == 'read' or mode == 'write' then
    return false
  end
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return false
  end
  if fields == 1 and not mode and string.match(redis.call('HVALS', lock)[1], '^%d+$') then
    return 'WRONGKIND a plain lock'
  end
  return 'WRONGKIND a hash that is not a lock (' .. fields .. ' fields)'
end
