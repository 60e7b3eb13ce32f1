-- A count-down latch.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [opened] ----------------------------------------------------------------------------------------

-- Returns the time at which the latch was last open; 0 if it is unknown. An ACL may deny the read.
local function last_opened(opened)
  local last = redis.pcall('GET', opened)
  return type(last) == 'string' and tonumber(last) or 0
end

-- Notes that the latch is open, or was until now. A waiter must not miss an opening, even if the
-- message was lost and the latch is set again. The noted time is later than all earlier ones, even
-- if the clock was set back or two openings happen within a millisecond.
local function note_opened(opened)
  -- An ACL may deny TIME or SET. The latch must open anyway, and usually the message is enough.
  local time = redis.pcall('TIME')
  local now = time.err and 0 or time[1] * 1000 + math.floor(time[2] / 1000)
  redis.pcall('SET', opened, math.max(now, last_opened(opened)) + 1, 'PX', 3600000)
end

-- [set] -------------------------------------------------------------------------------------------

-- Sets the latch to a count, unless it has one.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- count    the count to set
-- channel  where the waiters listen; the message is "1", as Redisson sends it
-- Returns  1  set
--          0  the latch has a count; nothing was changed
--          text WRONGKIND: not a latch; nothing was changed

local function set(latch, marker, done, opened, count, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local exists, other = number_at(latch)
  if other then
    return other
  end
  local failed = remember(marker, exists and 0 or 1)
  if failed or exists then
    return failed or 0
  end
  local made = redis.pcall('SET', latch, count)
  if made.err then
    redis.call('DEL', marker)
    return made.err
  end
  redis.pcall('DEL', done)
  -- The latch was open until now. If Redisson opened it, this was not noted, and Redisson's message
  -- may have been lost.
  note_opened(opened)
  redis.pcall('PUBLISH', channel, '1')
  return 1
end

-- [count_down] ------------------------------------------------------------------------------------

-- Counts down, and opens the latch at zero: removes its key and wakes the waiters.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- by       the number by which to count down
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  n  the remaining count; 0 if the latch is open
--          text WRONGKIND: not a latch; nothing was changed

local function count_down(latch, marker, done, opened, by, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local count, other = number_at(latch)
  if other then
    return other
  end
  -- This first write succeeds even if the server is out of memory, because the waiters must be
  -- notified.
  redis.call('DEL', done)
  local left = math.max((count or 0) - by, 0)
  local failed = remember(marker, left)
  if failed or not count then
    return failed or 0
  end
  if left > 0 then
    local changed = redis.pcall('DECRBY', latch, by)
    if type(changed) == 'table' then
      redis.call('DEL', marker)
      return changed.err
    end
    return left
  end
  redis.call('DEL', latch)
  if count > 0 then
    note_opened(opened)
    redis.pcall('PUBLISH', channel, '0')
  end
  return 0
end

-- [count] -----------------------------------------------------------------------------------------

-- Returns the remaining count, and when the latch was last open.
--
-- latch    text: the count
-- opened   text: when the latch was last open, in ms of the server's clock
-- Returns  { count, last }  count is 0 if the latch is open; last is 0 if it is not known
--          text WRONGKIND: not a latch

local function count(latch, opened)
  local exists, other = number_at(latch)
  if other then
    return other
  end
  return { math.max(exists or 0, 0), last_opened(opened) }
end

-- [delete] ----------------------------------------------------------------------------------------

-- Removes the latch, and wakes its waiters, which then continue.
--
-- latch    text: the count
-- marker   text: the reply to this request, once it has run
-- done     a marker that is no longer needed
-- opened   text: when the latch was last open, in ms of the server's clock
-- channel  where the waiters listen; the message is "1", as Redisson sends it, which wakes our
--          waiters but not Redisson's
-- Returns  1  removed
--          0  the latch did not exist
--          text WRONGKIND: not a latch; nothing was changed

local function delete(latch, marker, done, opened, channel)
  local before = redis.call('GET', marker)
  if before then
    return tonumber(before)
  end
  local count, other = number_at(latch)
  if other then
    return other
  end
  -- This first write succeeds even if the server is out of memory.
  redis.call('DEL', done)
  local failed = remember(marker, count and 1 or 0)
  if failed or not count then
    return failed or 0
  end
  redis.call('DEL', latch)
  note_opened(opened)
  redis.pcall('PUBLISH', channel, '1')
  return 1
end

-- [republish] -------------------------------------------------------------------------------------

-- Publishes once more that the latch is open. Publishes nothing if the latch has been set again,
-- because Redisson's waiters would send requests all the time until the next message.
--
-- latch    text: the count
-- channel  where the waiters listen; the message is "0", as Redisson sends it
-- Returns  1  published
--          0  the latch is not open; nothing was published
--          text WRONGKIND: not a latch

local function republish(latch, channel)
  local count, other = number_at(latch)
  if other then
    return other
  end
  if (count or 0) > 0 then
    return 0
  end
  redis.pcall('PUBLISH', channel, '0')
  return 1
end
