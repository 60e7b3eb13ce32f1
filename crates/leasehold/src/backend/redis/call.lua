-- Runs a call's operations in their order of arrival, each on its own: an error
-- of one is its reply and leaves the others alone.
--
-- KEYS  the operations' keys, one operation after the other
-- ARGV  not_after (server time in ms, 0 for none), then for each operation the
--       step's name and its arguments
-- Returns a list with one reply per operation. A text is an error; the list
--       { 'late', now } says that the operation was not run because the call came
--       too late; anything else is the step's own reply.

local late = false
local not_after = tonumber(ARGV[1])
if not_after > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- Nobody waits for this answer any more: a grant would be a lock for nobody.
  if now > not_after then late = { 'late', now } end
end

local replies = {}
local key, arg, n = 1, 2, 0
while ARGV[arg] do
  local step = steps[ARGV[arg]]
  local run, keys, args, grants = step[1], step[2], step[3], step[4]
  local ok, reply = true, late
  if not (grants and late) then
    -- A function takes the parameters it has and ignores what follows them.
    if keys == 1 then
      ok, reply = pcall(run, KEYS[key], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3])
    else
      ok, reply = pcall(run, KEYS[key], KEYS[key + 1], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3])
    end
    -- Older servers raise a text, newer ones a table.
    if not ok and type(reply) == 'table' then reply = reply.err end
  end
  n = n + 1
  replies[n] = reply
  key = key + keys
  arg = arg + 1 + args
end
return replies
