-- Returns the values that a hold no longer has, and their current holders.
--
-- group   hash: for each value `f` its holder, and two more fields
-- marker  hash: a field per hold that was ended by force
-- hold    the lost hold
-- fields  the values' fields, separated by spaces
-- Returns { forced, f, holder, ... }  1 if the hold was ended by force, else 0; then each field
--         that the hold no longer has, and its holder, or an empty text

local function why_lost(group, marker, hold, fields)
  local reply = { redis.call('HEXISTS', marker, hold) }
  local now = now_ms()
  for f in string.gmatch(fields, '%S+') do
    local holder = redis.call('HGET', group, f)
    local ends = holder and ends_at(group, f, holder)
    local live = ends and ends >= now
    if holder ~= hold or not live then
      reply[#reply + 1] = f
      reply[#reply + 1] = live and holder or ''
    end
  end
  return reply
end
