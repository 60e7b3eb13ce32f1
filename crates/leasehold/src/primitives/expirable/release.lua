-- Gives permits back by their ids.
--
-- permits  text: the number of free permits
-- timeout  sorted set: a permit's id, 16 bytes, with the end of its lease in ms
-- asking   list: the waiting clients, `number:permits`, in the order in which they asked
-- ids      the ids, one after the other
-- all      1: all of them or none; 0: all that exist
-- channel  where the waiters listen; the message is the number of free permits
-- Returns  1 + n  all were held until now, and n connections were notified
--          0      a permit was not held, or its lease was over; unless `all` is 1, the permits that
--                 are still in the set were given back anyway
--          text WRONGKIND: not a semaphore; nothing was changed

local function release(permits, timeout, asking, ids, all, channel)
  local _, other = number_at(permits)
  other = other or not_a_semaphore(timeout)
  if other then
    return other
  end
  local now, held, members = now_ms(), 1, {}
  for at = 1, #ids, 16 do
    local member, score = find(timeout, string.sub(ids, at, at + 15))
    if score then members[#members + 1] = member end
    if not score or score <= now then held = 0 end
  end
  if #members == 0 or (held == 0 and all == '1') then
    return 0
  end
  return held * (1 + give_back(permits, timeout, members, asking, channel))
end
