-- Runs a call's operations in their order of arrival, each independently: the error
-- of one operation is its reply and does not affect the others.
--
-- KEYS  the operations' keys, one operation after the other
-- ARGV  the call's number, not_after (server time in ms, 0 for none), then for each
--       operation the step's name and its arguments
-- Returns a list: the call's number, so that the reply to another call is not taken for
--       the reply to this one, then one reply for each operation. A text is an error. The
--       list { 'late', now } means that the operation was not run because the call arrived
--       too late, and { 'guarded', ms } that a failover guard grants nothing for that
--       long. Any other reply is the step's own.

local ARGV, KEYS = ARGV, KEYS
--[[LATE]]
--[[GUARD]]

--[[CLUSTER]]
-- Returns the shared Lua with the number `which`. Only a step that uses it creates it, so no other
-- call pays for it. The function receives itself as an argument, which is cheaper than an upvalue.
local function shared(which, shared)
--[[SHARED]]
end

--[[MADE]]
-- The table is created with space for the first reply: adding space later costs more.
local replies = { tonumber(ARGV[1]), false }
local key, arg, n = 1, 3, 2
local name = ARGV[arg]
while name do
  local ok, reply = true, late
--[[STEPS]]
  else
    -- The rest of the arguments can't be divided into operations.
    ok, reply, name = false, 'ERR unknown step', nil
  end
  -- Older servers raise a text, newer ones a table.
  if not ok and type(reply) == 'table' then reply = reply.err end
  replies[n] = reply
  n = n + 1
  name = name and ARGV[arg]
end
return replies
