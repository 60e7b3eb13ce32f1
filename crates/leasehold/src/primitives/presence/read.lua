-- The longest texts of an announcement. Any program may have written the key, so each text is cut.
local LONGEST_TEXT, LONGEST_LIST = 255, 8192

-- Returns a client's announcement.
--
-- client  hash: the client's own key
-- Returns { now, at, label, host, pid, version, address, age_ms, holds, waits }
--         at is the time of the announcement
--         0  the client is not announced

local function read(client)
  local at = redis.pcall('HGET', client, 'at')
  at = type(at) == 'string' and tonumber(at)
  if not at then
    return 0
  end
  local reply = { now_ms(), math.max(0, math.min(at, 2 ^ 50)) }
  for _, field in ipairs({ 'label', 'host', 'pid', 'version', 'address', 'age_ms', 'holds', 'waits' }) do
    local longest = (field == 'holds' or field == 'waits') and LONGEST_LIST or LONGEST_TEXT
    reply[#reply + 1] = string.sub(redis.call('HGET', client, field) or '', 1, longest)
  end
  return reply
end
