-- Calls the first clients that wait for permits and want no more than are free, `most` at most: each
-- by its number, on a channel of its own. Gives how many clients can count as called, 0 if none waits
-- so. Any command on the list may fail: an ACL may deny it, and it may be somebody else's.
local function call_waiting(asking, channel, free, most)
  local called, denied, some, at = 0, false, false, 0
  repeat
    local waiting = redis.pcall('LRANGE', asking, at, at + 99)
    some, at = some or #waiting > 0, at + #waiting
    for _, client in ipairs(waiting) do
      if called >= most or free <= 0 then break end
      local number, wants = string.match(client, '^(%d+):(%d+)$')
      if number and tonumber(wants) <= free then
        local removed = redis.pcall('LREM', asking, 1, client)
        at = at - (type(removed) == 'number' and removed or 0)
        local told = redis.pcall('PUBLISH', channel .. ':' .. number, number)
        denied = denied or type(told) ~= 'number'
        -- A client that is gone hears nothing: call the next one.
        if not denied and told > 0 then called, free = called + 1, free - wants end
      end
    end
    -- A client that wants few permits may be behind many that want more.
  until #waiting < 100 or called >= most or free <= 0
  -- Where an ACL denies a call, all have to ask.
  if denied then
    return 0
  end
  -- Each that waits wants more than are free: as if the first had been called, so that not all ask.
  return called == 0 and some and 1 or called
end

-- Tells the waiters for permits how many are free, after `more` have become free. Gives how many
-- connections heard it, -1 when that can't be known. For each client of ours that was called there
-- is a zero before the number, which is the same number to Redisson: to others of ours it means that
-- somebody else asks. Of Redisson's threads as many ask as a message says, but of its asynchronous
-- waiters one for each message, whatever that says. So there is a message for each permit, and
-- `extra` ones, within reason, unless nobody heard the first, which has the number. Redisson fails
-- on a negative number. An ACL may deny the channel.
local function publish_free(asking, channel, free, more, extra)
  if free <= 0 then
    return -1
  end
  local called = call_waiting(asking, channel, free, math.min(more, 64))
  local listeners = redis.pcall('PUBLISH', channel, string.rep('0', called) .. free)
  if listeners == 0 then
    return 0
  end
  for _ = 2, math.min(more + extra, 64) do redis.pcall('PUBLISH', channel, '0') end
  return type(listeners) == 'number' and listeners or -1
end
