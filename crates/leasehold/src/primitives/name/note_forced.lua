-- Notes that a hold is about to be ended by force, so that its holder learns the reason. The note
-- is only a courtesy: writing it fails when the server is out of memory. There are at most 4096
-- notes, so that a name whose holds are often ended by force does not fill the memory.
--
-- marker  hash: a field for each hold that was ended by force; lives as long as the
--         holds would have, so that their holders learn the reason
-- hold    the hold's id
-- ms      the remaining time of the hold's lease
-- Returns 1  noted
--         0  not noted

local function note_forced(marker, hold, ms)
  local size = redis.pcall('HLEN', marker)
  if type(size) ~= 'number' or size >= 4096
    or type(redis.pcall('HSET', marker, hold, '1')) == 'table' then
    return 0
  end
  if redis.call('PTTL', marker) < tonumber(ms) then
    local expiry = redis.pcall('PEXPIRE', marker, ms)
    if type(expiry) == 'table' then redis.pcall('DEL', marker) end
  end
  return 1
end
