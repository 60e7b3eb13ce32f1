-- Returns the holders of these values, and how long their leases still last.
--
-- group   hash: for each value `f` its holder, and two more fields
-- fields  the values' fields, separated by spaces
-- Returns { ttl, holder, count, ... }  the remaining time of the longest lease in ms, and each
--                                      holder once, with its count
--         { -2 }                       all values are free
--         text WRONGKIND: not a group of locks

local function inspect(group, fields)
  local size = redis.call('HLEN', group)
  local other = wrong_kind('a group lock', group, size)
  if other then
    return other
  end
  local now, reply, seen = now_ms(), { -2 }, {}
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    local ends = holder and ends_at(group, f, holder)
    if ends and ends >= now then
      reply[1] = math.max(reply[1], ends - now)
      if not seen[holder] then
        seen[holder] = true
        reply[#reply + 1] = holder
        reply[#reply + 1] = redis.call('HGET', group, f .. ':' .. holder .. ':lock_count') or '1'
      end
    end
  end
  return reply
end
