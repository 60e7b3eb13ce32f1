-- The list of clients that wait for a lock, in order of arrival. An item is the client's number,
-- which a release publishes to notify the client. `:1` follows if the client also listens on a
-- channel of its own. Every command on the list may fail: an ACL may deny it, the key may belong to
-- another program, or there may be no memory for it. Then no client is notified by its number, and
-- each client asks at each message.

-- Returns the number of a client and the rest of its item; nil if the item is not one of ours.
local function client_of(item)
  if type(item) == 'string' then
    return string.match(item, '^(%d%d%d+)(:?%d*)$')
  end
end

-- Adds a waiting client. Returns how many clients are before it, or no number if it was not added.
local function enlist(asking, client, notified)
  local length = redis.pcall('LLEN', asking)
  -- Killed clients may fill the list during a long hold. A full list expires once none of its
  -- clients asks any more.
  if type(length) ~= 'number' or length >= 1000 then
    return false
  end
  if length > 0 and not client_of(redis.pcall('LINDEX', asking, 0)) then
    return false
  end
  if notified == '1' then
    return type(redis.pcall('LPUSH', asking, client)) == 'number' and 0
  end
  length = redis.pcall('RPUSH', asking, client)
  return type(length) == 'number' and length - 1
end

-- Returns how many clients are notified before this waiting client; -1 if this client is not in the
-- list. `notified` is 1 if a release has notified this client, but another client was quicker.
local function clients_before(asking, client, notified)
  local before = redis.pcall('LPOS', asking, client)
  if not before then
    before = enlist(asking, client, notified)
  end
  if type(before) ~= 'number' then
    -- The list of another program gets no expiry.
    return -1
  end
  -- Each waiter asks again within ten seconds. A list for which no client asks expires.
  local expiry = redis.pcall('PEXPIRE', asking, 12000)
  if type(expiry) == 'table' then
    -- A list without an expiry would remain for ever.
    redis.pcall('DEL', asking)
    return -1
  end
  return before
end

-- Notifies the first client that still listens, right after the `0` of a release.
local function notify_first(asking, channel)
  while true do
    local number, listens = client_of(redis.pcall('LINDEX', asking, 0))
    if not number or type(redis.pcall('LPOP', asking)) ~= 'string' then
      return
    end
    -- A killed client no longer listens. If it were notified, the others would wait for it.
    local subscribers = listens ~= '' and redis.pcall('PUBSUB', 'NUMSUB', channel .. ':' .. number)
    if not subscribers or subscribers[2] ~= 0 then
      -- Redisson reads a number from each message, and ignores any number other than 0 and 1.
      redis.pcall('PUBLISH', channel, number)
      return
    end
  end
end
