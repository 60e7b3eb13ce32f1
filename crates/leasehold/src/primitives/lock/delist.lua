-- Removes a client that no longer waits from the list of clients to notify.
--
-- asking   list: the clients to notify, each as `number:1`, in order of arrival
-- client   this client's item in `asking`
-- Returns  n     the client was in the list n times
--          text  the list can't be changed

local function delist(asking, client)
  return redis.call('LREM', asking, 0, client)
end
