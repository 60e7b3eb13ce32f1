-- Notifies the first clients that want no more permits than are free, `most` clients at most. The
-- message to a client is its number, on a channel of its own. Returns how many clients count as
-- notified; 0 if the list is empty or an ACL denies a message. Any command on the list may fail: an
-- ACL may deny it, and the key may belong to another program.
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
        -- A client that has disconnected does not get the message. Then the next one is notified.
        if not denied and receivers > 0 then notified, free = notified + 1, free - wants end
      end
    end
    -- A client that wants few permits may be in the list after many that want more.
  until #waiting < 100 or notified >= most or free <= 0
  -- If an ACL denied a message, all clients must ask.
  if denied then
    return 0
  end
  -- If every client in the list wants more than are free, one counts as notified, so that not all
  -- of them ask.
  return notified == 0 and some and 1 or notified
end

-- Publishes how many permits are free, after `more` have become free. Returns how many connections
-- got the message; -1 if that can't be known.
--
-- In the first message, one zero before the number stands for each client of this library that was
-- notified. To Redisson it is the same number. To the other clients of this library, the zeros mean
-- that only the notified clients ask. Redisson wakes as many threads as the number says, but only
-- one asynchronous waiter for each message. So there is one message for each permit and `extra`
-- more, 64 in all at most. If no connection got the first message, the others are not sent.
-- Redisson fails on a negative number. An ACL may deny the channel.
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
