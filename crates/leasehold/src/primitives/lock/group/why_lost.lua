-- Says which values of a hold are not there any more, and who has them.
--
-- group   hash: per value `f` its holder, and two fields more
-- marker  hash: a field per hold that was ended by force
-- hold    the hold in question
-- fields  the values' fields, with a space between two
-- Returns { forced, f, holder, ... }  1 if it was ended by force, else 0; then each field
--         that is not its own, and who holds it, or nothing

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
