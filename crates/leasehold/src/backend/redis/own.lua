-- Runs the only operation of a call, as `call.lua` does, but with less overhead.
--
-- KEYS  the operation's keys
-- ARGV  the call's number; if the step grants something, not_after (server time in ms, 0 for none);
--       the step's arguments; the step's name, for people who watch which scripts a server runs
-- Returns  text  the call's number, then `:` and the number that the step replies, or nothing
--                if it replies nil: a list would make the script a sixth slower
--          list  any other reply, as `call.lua` returns it for one operation

--[[LATE]]
--[[GUARD]]
--[[STEP]]
local ok, reply = true, late
if not late then
  ok, reply = pcall(--[[CALL]])
end
-- Older servers raise a text, newer ones a table.
if not ok and type(reply) == 'table' then reply = reply.err end
if reply == false then return ARGV[1] end
-- Larger numbers are not exact as text.
if type(reply) == 'number' and reply < 1000000000 then return ARGV[1] .. ':' .. reply end
return { tonumber(ARGV[1]), reply }
