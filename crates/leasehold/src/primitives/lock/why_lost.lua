-- Returns why a hold no longer exists.
--
-- lock    hash: one field per hold, `uuid:n`
-- marker  hash: a field per hold that was ended by force
-- hold    the lost hold
-- Returns { holder, forced }  the current holder, or an empty text; 1 if the hold was ended by
--         force, else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- A lock has one field. Any other hash could be of any size.
  if redis.call('HLEN', lock) == 1 then
    holder = redis.call('HKEYS', lock)[1]
  end
  return { holder, redis.call('HEXISTS', marker, hold) }
end
