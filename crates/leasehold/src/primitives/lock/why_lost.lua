-- Says what became of a hold that is not there any more.
--
-- lock    hash: one field per hold, `uuid:n`
-- marker  string: whose hold was ended by force
-- Returns { holder, forced }  who holds it now, and what the marker says; each
--         empty if there is nothing to say

local function why_lost(lock, marker)
  local holder, forced = '', ''
  -- One field, or it is not a lock and could be of any size.
  if redis.call('HLEN', lock) == 1 then
    holder = redis.call('HKEYS', lock)[1]
  end
  forced = redis.call('GET', marker) or ''
  return { holder, forced }
end
