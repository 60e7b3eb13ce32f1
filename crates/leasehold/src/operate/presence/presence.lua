-- The announcements of clients, and the register of the clients that announce themselves.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [announce] --------------------------------------------------------------------------------------

-- Announces a client: its description, its holds and its waits. Replaces its earlier announcement.
--
-- client   hash: the client's own key
-- label    the label that its user gave it
-- host     the machine it runs on
-- pid      its process there
-- version  the version of the library
-- address  its address as the server sees it
-- age_ms   time since the client was created
-- holds    `n:ms` for each hold, separated by spaces: ms is the time since it began
-- waits    `ms name` and a line end for each name that it waits for
-- ms       how long the announcement is valid; 0 when the client ends
-- Returns  1

local function announce(client, label, host, pid, version, address, age_ms, holds, waits, ms)
  -- The key may be of another type. Only this client uses the key, so it can be deleted.
  redis.call('DEL', client)
  if ms == '0' then
    return 1
  end
  for field, value in pairs({
    label = label, host = host, pid = pid, version = version, address = address,
    age_ms = age_ms, holds = holds, waits = waits, at = string.format('%.0f', now_ms()),
  }) do
    redis.call('HSET', client, field, value)
  end
  redis.call('PEXPIRE', client, ms)
  return 1
end

-- [enrol] -----------------------------------------------------------------------------------------

-- Adds a client to the register of clients, or removes it. Also removes entries that are no longer
-- valid.
--
-- clients  sorted set: the clients, each with the time (ms) until which its entry is valid
-- id       the client
-- ms       how long the entry is valid; 0 when the client ends
-- Returns  1

local function enrol(clients, id, ms)
  local now = now_ms()
  redis.call('ZREMRANGEBYSCORE', clients, '-inf', string.format('%.0f', now))
  if ms == '0' then
    redis.call('ZREM', clients, id)
    return 1
  end
  redis.call('ZADD', clients, string.format('%.0f', now + ms), id)
  redis.call('PEXPIRE', clients, ms)
  return 1
end

-- [read] ------------------------------------------------------------------------------------------

-- The longest strings in an announcement. Any program may have written the key, so each string is
-- cut.
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

-- [clients] ---------------------------------------------------------------------------------------

-- Lists the clients that announce themselves.
--
-- clients  sorted set: the clients, each with the time (ms) until which its entry is valid
-- most     the most clients that are listed
-- Returns  a list of ids

local function clients(clients, most)
  local after = string.format('(%.0f', now_ms())
  local some = redis.pcall('ZRANGEBYSCORE', clients, after, '+inf', 'LIMIT', 0, most)
  if some.err then
    return {}
  end
  for n = 1, #some do
    some[n] = string.sub(some[n], 1, 64)
  end
  return some
end
