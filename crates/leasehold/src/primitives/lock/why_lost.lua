-- Says what became of a hold that is not there any more.
--
-- lock    hash: one field per hold, `uuid:n`
-- marker  hash: a field per hold that was ended by force
-- hold    the hold in question
-- Returns { holder, forced }  who holds it now, or nothing; 1 if it was ended by
--         force, else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- One field, or it is not a lock and could be of any size.
  if redis.call('HLEN', lock) == 1 then
    holder = redis.call('HKEYS', lock)[1]
  end
  return { holder, redis.call('HEXISTS', marker, hold) }
end
