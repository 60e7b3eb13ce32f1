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
