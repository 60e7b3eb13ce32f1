-- On a node of a cluster one more argument stands behind not_after:
--   '0'     one operation, whose keys are declared: the server has seen that they are here
--   'here'  the same, and the operation touches keys that are not declared
--   number  so many keys follow, of any slots of this node, and none is declared
-- An operation whose slot is not here, or not wholly, replies { 'moving' } and was not run.

local looks, first_key, first_arg = ARGV[3] ~= '0', 1, 4
if looks and ARGV[3] ~= 'here' then
  KEYS, first_key, first_arg = ARGV, 4, 4 + ARGV[3]
end
local moving, found = { 'moving' }, {}

-- The reply to an operation whose slot is not here, or not wholly; false if all of its keys are here.
-- A key that is never there tells: while a slot is moving, a server refuses exactly the keys that it
-- does not have. All that runs in this script sees the same.
local function elsewhere(key)
  local tag = string.match(key, '{([^}]*)}') or key
  local away = found[tag]
  if away == nil then
    local seen = redis.pcall('EXISTS', 'leasehold:{' .. tag .. '}:here')
    away = seen ~= 0 and moving
    -- A user who may not look is told so: the slot may be here all the time.
    if away and (string.find(seen.err, 'ACL failure', 1, true)
      or string.find(seen.err, 'user executing the script', 1, true)) then
      away = seen.err
    end
    found[tag] = away
  end
  return away
end

-- Replies nothing: how many hear it at other nodes nobody here knows.
local function publish(channel, message)
--[[PUBLISH]]
end

