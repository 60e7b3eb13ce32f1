-- A call to a node of a cluster has one more argument, after not_after:
--   '0'     one operation, all of whose keys are declared: the server knows that they are here
--   'here'  one operation whose keys are declared, but which also touches undeclared keys
--   number  as many undeclared keys follow, which may be in any slots of this node
-- If an operation's slot is not on this node, or only in part, the operation is not run, and its
-- reply is { 'moving' }.

local checks_slot, first_key, first_arg = ARGV[3] ~= '0', 1, 4
if checks_slot and ARGV[3] ~= 'here' then
  KEYS, first_key, first_arg = ARGV, 4, 4 + ARGV[3]
end
local moving, found = { 'moving' }, {}

-- Returns the reply to an operation whose slot is not on this node, or only in part; false if all
-- of the slot's keys are here. The check reads a key that never exists: while a slot is moving, a
-- server refuses every key that it does not have. The answer is the same throughout this script.
local function elsewhere(key)
  local tag = string.match(key, '{([^}]*)}') or key
  local away = found[tag]
  if away == nil then
    local seen = redis.pcall('EXISTS', 'leasehold:{' .. tag .. '}:here')
    away = seen ~= 0 and moving
    -- A user who is not allowed to run the check gets the server's error, because the slot may be
    -- here.
    if away and (string.find(seen.err, 'ACL failure', 1, true)
      or string.find(seen.err, 'user executing the script', 1, true)) then
      away = seen.err
    end
    found[tag] = away
  end
  return away
end

-- Returns nothing: this node does not know how many clients receive the message at other nodes.
local function publish(channel, message)
--[[PUBLISH]]
end

