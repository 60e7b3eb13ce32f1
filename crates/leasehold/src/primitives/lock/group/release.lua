-- Frees those values that this hold still has, and wakes the waiters.
--
-- group    hash: per value `f` its holder, and two fields more
-- hold     this hold's id
-- channel  where the waiters listen
-- fields   the values' fields, with a space between two
-- Returns  1     all of them released
--          0     none was ours any more; nothing was changed
--          list  the fields that were not ours any more; the others are released

local function release(group, hold, channel, fields)
  local lost, had = {}, false
  for f in string.gmatch(fields, '%S+') do
    if redis.call('HGET', group, f) == hold then
      -- First a command that works when the server is out of memory; the hash goes
      -- with its last field.
      redis.call('HDEL', group, f)
      had = true
    else
      lost[#lost + 1] = f
    end
    remove(group, f, hold)
  end
  if not had then
    return 0
  end
  trim_expiry(group)
  -- Not one waiter of each Java process: it may want another value.
  wake_all(channel)
  return #lost == 0 and 1 or lost
end
