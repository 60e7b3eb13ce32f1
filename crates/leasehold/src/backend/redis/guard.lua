-- Part of the scripts of a client with a failover guard. Defines `guarded`, which decides about an
-- operation that requests a hold. It returns { 'guarded', ms } if no client gets a hold for the
-- next `ms`, false if the operation may run, and a string if the guard fails. The server's state is
-- read once for each call.
--
-- leasehold:guard  string: the server's replication id, and when a client first saw it (server time
--                  in ms). The id changes with a failover and with a restart. The end of the
--                  guarded time is not stored, because clients that share the server may have
--                  different spans.

local function read_guard()
  local id = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  if not id then return 'ERR its INFO has no master_replid' end
  local clock = time or redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local known, since = string.match(redis.call('GET', 'leasehold:guard') or '', '^(%x+) (%d+)$')
  since = known == id and tonumber(since)
  -- The stored time is later than now only if the clock was set back.
  if not since or since > now then
    since = now
    redis.call('SET', 'leasehold:guard', id .. ' ' .. string.format('%.0f', now))
  end
  local left = since + --[[SPAN_MS]] - now
  return left > 0 and { 'guarded', left }
end

local seen
local function guarded()
  if seen == nil then
    local ok, said = pcall(read_guard)
    -- Older servers raise a string, newer ones a table.
    if not ok and type(said) == 'table' then said = said.err end
    if type(said) == 'string' then
      said = said .. '; so the failover guard, which reads INFO and keeps leasehold:guard, grants nothing'
    end
    seen = said
  end
  return seen
end

