-- Frees the values that this hold still has, and wakes the waiters.
--
-- group    hash: for each value `f` its holder, and two more fields
-- hold     this hold's id
-- channel  where the waiters listen
-- fields   the values' fields, separated by spaces
-- Returns  1     all values were released
--          0     this hold had none of them any longer; nothing was changed
--          list  the fields that this hold no longer had; the others were released

local function release(group, hold, channel, fields)
  local lost, had = {}, false
  for f in string.gmatch(fields, '%S+') do
    if redis.call('HGET', group, f) == hold then
      -- The first command must be one that works when the server is out of memory. The hash is
      -- deleted with its last field.
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
  -- Waking one waiter of each Java process is not enough: that waiter may want another value.
  wake_all(channel)
  return #lost == 0 and 1 or lost
end
