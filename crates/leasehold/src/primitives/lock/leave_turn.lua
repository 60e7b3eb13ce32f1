-- Takes a client that no longer waits out of the list of clients to call.
--
-- asking   list: the numbers of the clients to call, in order of arrival
-- client   the number by which releases call this client
-- Returns  n     the client was in the list n times
--          text  the list can't be changed

local function leave_turn(asking, client)
  return redis.call('LREM', asking, 0, client)
end
