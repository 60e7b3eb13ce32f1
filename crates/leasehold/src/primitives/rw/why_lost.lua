-- Returns why a hold no longer exists.
--
-- lock    hash: `mode`, a field per read hold, `uuid:n`, and the field of the write hold,
--         `uuid:n:write`
-- marker  hash: a field per hold that was ended by force
-- hold    the lost hold
-- Returns { holder, forced }  the current writer, or an empty text; 1 if the hold was ended by
--         force, else 0

local function why_lost(lock, marker, hold)
  local holder = ''
  -- A lock with a writer has no read holds except the writer's own. Without a writer there may be
  -- thousands of readers.
  if redis.call('HGET', lock, 'mode') == 'write' and redis.call('HLEN', lock) < 64 then
    for _, field in ipairs(redis.call('HKEYS', lock)) do
      if field ~= hold and string.find(field, ':write', 1, true) then holder = field end
    end
  end
  return { holder, redis.call('HEXISTS', marker, hold) }
end
