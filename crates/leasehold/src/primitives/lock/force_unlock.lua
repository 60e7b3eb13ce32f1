-- Ends the current hold, and notes that it was ended by force.
--
-- lock     hash: one field per hold, `uuid:n`
-- marker   hash: a field per hold that was ended by force; lives as long as the
--          holds would have, so that their holders learn the reason
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  unlocked
--          0  the lock was free
--          text WRONGKIND: not a plain lock; nothing was changed

local function force_unlock(lock, marker, channel)
  local broken = break_hold(lock, marker)
  if broken == 1 then
    redis.pcall('PUBLISH', channel, '0')
  end
  return broken
end
