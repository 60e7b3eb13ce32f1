-- Takes a client out of the list of those to call: it waits no longer.
--
-- asking   list: the numbers of the clients to call, in the order in which they came
-- client   the number by which this client is called
-- Returns  n     it was in the list so often
--          text  the list can't be changed

local function leave_turn(asking, client)
  return redis.call('LREM', asking, 0, client)
end
