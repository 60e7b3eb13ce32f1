-- Calls the first clients that wait for permits and want no more than are free, `most` at most.
-- Each is called by its number, on a channel of its own. Returns how many clients count as called;
-- 0 if none waits in this way. Any command on the list may fail: an ACL may deny it, and the key
-- may belong to another program.
local function notify_waiting(asking, channel, free, most)
  local notified, denied, some, at = 0, false, false, 0
  repeat
    local waiting = redis.pcall('LRANGE', asking, at, at + 99)
    some, at = some or #waiting > 0, at + #waiting
    for _, client in ipairs(waiting) do
      if notified >= most or free <= 0 then break end
      local number, wants = string.match(client, '^(%d+):(%d+)$')
      if number and tonumber(wants) <= free then
        local removed = redis.pcall('LREM', asking, 1, client)
        at = at - (type(removed) == 'number' and removed or 0)
        local receivers = redis.pcall('PUBLISH', channel .. ':' .. number, number)
        denied = denied or type(receivers) ~= 'number'
        -- A client that has disconnected does not get the message: call the next one.
        if not denied and receivers > 0 then notified, free = notified + 1, free - wants end
      end
    end
    -- A client that wants few permits may be in the list after many that want more.
  until #waiting < 100 or notified >= most or free <= 0
  -- If an ACL denies a call, all clients must ask.
  if denied then
    return 0
  end
  -- If each waiting client wants more than are free, the first counts as notified, so that not all of
  -- them ask.
  return notified == 0 and some and 1 or notified
end

-- Publishes to the waiters for permits how many are free, after `more` have become free. Returns
-- how many connections got the message; -1 when that can't be known.
--
-- The message has a zero before the number for each client of this library that was called. To
-- Redisson it is the same number. To the other clients of this library, the zeros mean that the
-- called clients ask. As many of Redisson's threads ask as the message says, but its asynchronous
-- waiters ask once for each message, for any number. So there is one message for each permit and
-- `extra` more, 64 at most. They are not sent if no connection got the first message, which has the
-- number. Redisson fails on a negative number. An ACL may deny the channel.
local function publish_free(asking, channel, free, more, extra)
  if free <= 0 then
    return -1
  end
  local notified = notify_waiting(asking, channel, free, math.min(more, 64))
  local listeners = redis.pcall('PUBLISH', channel, string.rep('0', notified) .. free)
  if listeners == 0 then
    return 0
  end
  for _ = 2, math.min(more + extra, 64) do redis.pcall('PUBLISH', channel, '0') end
  return type(listeners) == 'number' and listeners or -1
end
