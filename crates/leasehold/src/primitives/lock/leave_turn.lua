-- Takes a client out of the list of those to call: it waits no longer.
--
-- asking   list: the clients to call, `number:1`, in the order in which they came
-- client   this client, as in `asking`
-- Returns  n     it was in the list so often
--          text  the list can't be changed

local function leave_turn(asking, client)
  return redis.call('LREM', asking, 0, client)
end
