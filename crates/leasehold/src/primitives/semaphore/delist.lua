-- Removes a client that no longer waits from the list. If a release has notified it already and
-- permits are free, this notifies the next client.
--
-- semaphore  text: the number of free permits
-- asking     list: the waiting clients, `number:permits`, in the order in which they asked
-- client     this client, and how many permits it wanted
-- channel    where the waiters listen: `publish_free.lua`
-- Returns    n     how often the client was in the list
--            text  the list can't be changed; WRONGKIND: not a semaphore

local function delist(semaphore, asking, client, channel)
  local times = redis.call('LREM', asking, 0, client)
  local free, other = number_at(semaphore)
  if other then
    return other
  end
  if times == 0 then notify_waiting(asking, channel, free or 0, 1) end
  return times
end
