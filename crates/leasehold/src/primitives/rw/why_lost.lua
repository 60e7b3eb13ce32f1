-- Says what became of a hold that is not there any more.
--
-- lock    hash: `mode`, a field per read hold, `uuid:n`, and the write hold's,
--         `uuid:n:write`
-- marker  hash: a field per hold that was ended by force
-- hold    the hold in question
-- Returns { holder, forced }  who writes now, or nothing; 1 if it was ended by force,
--         else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- Beside a writer are no fields but those of its own read holds, while readers may be
  -- thousands.
  if redis.call('HGET', lock, 'mode') == 'write' and redis.call('HLEN', lock) < 64 then
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      if field ~= hold and string.find(field, ':write', 1, true) then holder = field end
    end
  end
  return { holder, redis.call('HEXISTS', marker, hold) }
end
