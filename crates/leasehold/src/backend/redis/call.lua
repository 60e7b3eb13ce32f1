-- Runs a call's operations in their order of arrival, each on its own: an error
-- of one is its reply and leaves the others alone.
--
-- KEYS  the operations' keys, one operation after the other
-- ARGV  the call's number, not_after (server time in ms, 0 for none), then for each
--       operation the step's name and its arguments
-- Returns a list: the call's number, so that no other call's reply is taken for this
--       one's, then one reply per operation. A text is an error; the list
--       { 'late', now } says that the operation was not run because the call came
--       too late, and { 'guarded', ms } that a failover guard let nobody get anything
--       for that long; anything else is the step's own reply.

local ARGV, KEYS = ARGV, KEYS
--[[LATE]]
--[[GUARD]]

--[[CLUSTER]]
-- What several steps share. A step that uses it makes it, so no other call pays for it. It gets
-- itself as an argument, which is cheaper than to catch its own variable.
local function shared(which, shared)
--[[SHARED]]
end

--[[MADE]]
-- With room for the first reply: to make it later costs more.
local replies = { tonumber(ARGV[1]), false }
local key, arg, n = 1, 3, 2
local name = ARGV[arg]
while name do
  local ok, reply = true, late
--[[STEPS]]
  else
    -- Whatever follows can't be told apart.
    ok, reply, name = false, 'ERR unknown step', nil
  end
  -- Older servers raise a text, newer ones a table.
  if not ok and type(reply) == 'table' then reply = reply.err end
  replies[n] = reply
  n = n + 1
  name = name and ARGV[arg]
end
return replies
