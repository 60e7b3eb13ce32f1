-- The scripts that run steps.
-- A line `-- [NAME]` begins a section: a script, or a part of both.

-- [call] ------------------------------------------------------------------------------------------

-- Runs a call's operations in their order of arrival, each independently: the error
-- of one operation is its reply and does not affect the others.
--
-- KEYS  the operations' keys, one operation after the other
-- ARGV  the call's number, not_after (server time in ms, 0 for none), then for each
--       operation the step's name and its arguments
-- Returns a list: the call's number, so that the reply to another call is not taken for
--       the reply to this one, then one reply for each operation. A string is an error. The
--       list { 'late', now } means that the operation was not run because the call arrived
--       too late. The list { 'guarded', ms } means that a failover guard grants nothing for
--       the next `ms`. Any other reply is the step's own.

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
  -- Older servers raise a string, newer ones a table.
  if not ok and type(reply) == 'table' then reply = reply.err end
  replies[n] = reply
  n = n + 1
  name = name and ARGV[arg]
end
return replies

-- [own] -------------------------------------------------------------------------------------------

-- Runs the only operation of a call, as `call` does, but with less overhead.
--
-- KEYS  the operation's keys
-- ARGV  the call's number; if the step grants something, not_after (server time in ms, 0 for none);
--       the step's arguments; the step's name, for people who watch which scripts a server runs
-- Returns  string  the call's number, then `:` and the number that the step replies, or nothing
--                  more if the step replies nil: a list would make the script a sixth slower
--          list    any other reply, as `call` returns it for one operation

--[[LATE]]
--[[GUARD]]
--[[STEP]]
local ok, reply = true, late
if not late then
  ok, reply = pcall(--[[CALL]])
end
-- Older servers raise a string, newer ones a table.
if not ok and type(reply) == 'table' then reply = reply.err end
if reply == false then return ARGV[1] end
-- Lua writes larger numbers inexactly.
if type(reply) == 'number' and reply < 1000000000 then return ARGV[1] .. ':' .. reply end
return { tonumber(ARGV[1]), reply }

-- [late] ------------------------------------------------------------------------------------------

-- Defines `late`: the reply to an operation that does not run because its call arrived too late, or
-- false if the call is in time. Also defines `time`, the server's time, if it was read.
local late, time = false, nil
if ARGV[2] ~= '0' then
  time = redis.call('TIME')
  -- No client waits for this reply any more, so a grant would only keep the lock from all clients.
  -- The times are compared as strings first. That is cheaper than comparing numbers, and is enough
  -- for a call that has more than a second left.
  if ARGV[2] <= time[1] .. '999' and time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[2]) then
    late = { 'late', time[1] * 1000 + math.floor(time[2] / 1000) }
  end
end
