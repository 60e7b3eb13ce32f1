-- What a client has said of itself. Anybody may have written the key, so each text is cut.
local LONGEST_TEXT, LONGEST_LIST = 255, 8192

-- Tells who a client is.
--
-- client  hash: the client's own key
-- Returns { now, at, label, host, pid, version, address, age_ms, holds, waits }
--         at is when it said so
--         0  it is not there

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
