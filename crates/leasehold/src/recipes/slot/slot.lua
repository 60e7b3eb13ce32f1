-- Turns of a plain lock: once per slot of the server's clock, or once per id.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [turns] -----------------------------------------------------------------------------------------

-- Returns the number in this string; nil if it is not a short row of digits.
local function whole(text)
  return text and #text < 16 and string.match(text, '^%d+$') and tonumber(text)
end
local function digits(number)
  return string.format('%.0f', number)
end
-- Returns the number of the slot that has begun last at `ms`; 0 for a turn per id, which has no
-- slots.
local function slot_at(ms, period_ms, offset_ms)
  local period = tonumber(period_ms)
  if period == 0 then return 0 end
  return math.max(0, math.floor((ms - tonumber(offset_ms)) / period))
end
-- Returns the number of the slot whose beginning is nearest to `ms`.
local function nearest_slot(ms, period_ms, offset_ms)
  return slot_at(ms + math.floor(tonumber(period_ms) / 2), period_ms, offset_ms)
end
-- The fields of a record that replies contain, in this order.
local FIELDS = { 'slot', 'state', 'hold', 'by', 'at_ms', 'ended_ms', 'rc', 'missed', 'id', 'period_ms',
  'offset_ms' }
-- The fields in which a turn that repeats another one keeps the record of that turn, in the same
-- order, and then the record's time to live.
local WAS = {}
for n, field in ipairs(FIELDS) do
  WAS[n] = 'was_' .. field
end
WAS[#FIELDS + 1] = 'was_ttl_ms'
-- Returns the stored facts about a turn. Read the fields one by one: HMGET would be one more
-- command that the user must be allowed to run.
local function seen_in(record)
  local seen = {}
  for n, field in ipairs(FIELDS) do
    seen[n] = redis.call('HGET', record, field)
  end
  return seen
end
-- Returns the stored facts about the turn that began last, if this hold has that turn.
local function turn_of(newest, hold)
  if hold == '' or redis.call('HGET', newest, 'hold') ~= hold then return nil end
  return seen_in(newest)
end
-- Returns the hold that has the lock; an empty string if there is none, or not exactly one.
local function holder_of(lock)
  return redis.call('HLEN', lock) == 1 and redis.call('HKEYS', lock)[1] or ''
end
-- Returns a reply that grants nothing.
local function refusal(code, lock, holder, seen)
  return { code, now_ms(), redis.call('PTTL', lock), holder, unpack(seen) }
end
-- Returns a reply that grants a turn.
local function granted(slot, missed, began_ms, died)
  return { 1, slot, missed, began_ms, unpack(died) }
end
-- Returns the keys of the records that a turn writes.
local function records(newest, record)
  return newest == record and { record } or { record, newest }
end
-- Returns the holds of the last turns of a record, the newest first, separated by spaces. `hold` is
-- the last one.
local function past_of(record, hold)
  local past = redis.call('HGET', record, 'past') or ''
  return hold and hold .. (past == '' and '' or ' ' .. past) or past
end
-- Puts back the record that the turn of this hold has replaced. Returns the reply of HSET.
local function put_back(record, hold)
  local past = redis.pcall('HGET', record, 'past')
  -- The first hold of the list is the one that is put back.
  local rest = type(past) == 'string' and string.match(past, '^[^ ]* ?(.*)') or ''
  local set, gone = { 'past', hold .. (rest == '' and '' or ' ' .. rest) }, {}
  for n, field in ipairs(FIELDS) do
    local value = redis.pcall('HGET', record, WAS[n])
    if type(value) == 'string' then
      set[#set + 1], set[#set + 2] = field, value
    else
      gone[#gone + 1] = field
    end
  end
  if gone[1] then redis.pcall('HDEL', record, unpack(gone)) end
  return redis.pcall('HSET', record, unpack(set))
end
-- Records the end of a turn, if it is the turn of this hold. A turn that no client began leaves the
-- record of the turn that it repeats. Returns an error message if that failed.
local function note_end(record, hold, state, rc, keep_ms)
  if redis.pcall('HGET', record, 'hold') ~= hold then return nil end
  local noted
  if state == 'open' and type(redis.pcall('HGET', record, 'was_state')) == 'string' then
    keep_ms = whole(redis.pcall('HGET', record, 'was_ttl_ms')) or keep_ms
    noted = put_back(record, hold)
  else
    noted = redis.pcall('HSET', record, 'state', state, 'ended_ms', digits(now_ms()), 'rc', rc)
  end
  redis.pcall('HDEL', record, unpack(WAS))
  redis.pcall('PEXPIRE', record, keep_ms)
  return type(noted) == 'table' and noted.err or nil
end
-- Records the end of the turn of this hold. Returns an error message if that failed.
local function record_end(newest, record, hold, state, rc, keep_ms)
  local failed
  for _, key in ipairs(records(newest, record)) do
    failed = note_end(key, hold, state, rc, keep_ms) or failed
  end
  return failed
end
-- Writes the records of a turn again, if they were lost or have expired during the job.
local function restore(newest, record, hold, slot, period_ms, offset_ms, id, by, began_ms)
  for _, key in ipairs(records(newest, record)) do
    if redis.pcall('HLEN', key) == 0 then
      redis.pcall('HSET', key, 'slot', slot, 'state', 'running', 'hold', hold, 'by', by,
        'at_ms', began_ms, 'period_ms', period_ms, 'offset_ms', offset_ms, 'id', id)
    end
  end
end

-- [begin] -----------------------------------------------------------------------------------------

-- Grants the lock to this hold if it is free and the turn is still open.
--
-- lock          hash: one field per hold, `uuid:n`
-- newest        hash: the turn that began last under this name
-- record        hash: the requested turn; the same key as `newest` with slots
-- hold          this hold's field
-- lease_ms      how long the hold lasts without renewal
-- period_ms     the length of a slot; 0 for a turn per id
-- offset_ms     the time of the first slot
-- requested_ms  the time of the client's first request, on this server's clock: this operation may
--               run much later. Turns per id do not use it
-- id            the id of the turn; empty with slots
-- repeats       1 if a failed turn may be repeated; 2 if any turn that does not run may be
--               repeated, and the slots may change
-- most_once     1 if a turn whose holder died is not repeated
-- by            the name that operators see
-- keep_ms       how long the record is kept
-- Returns   { 1, slot, missed, now, ... }
--             granted; `missed` slots had no turn since the last one; then the record of the last
--             turn, if that never ended
--           { 2, now, ttl, holder, ... }
--             another hold has the lock: the record of its turn if it has one; or this hold had one
--             of the last turns, which has ended
--           { 3, now, ttl, holder, ... }
--             the turn is over, and the record says how; another hold may have the lock, with a ttl
--             of -2 if none has it
--           text WRONGKIND: not a plain lock, or other slots

local function begin(lock, newest, record, hold, lease_ms, period_ms, offset_ms, requested_ms, id, repeats, most_once, by, keep_ms)
  local held, seen = redis.call('HLEN', lock), seen_in(record)
  if held > 0 and redis.call('HEXISTS', lock, hold) == 1 then
    -- This is a copy of the request that was granted.
    return granted(whole(seen[1]) or 0, whole(seen[8]) or 0, whole(seen[5]) or 0, {})
  end
  local other = held > 0 and wrong_kind('a plain lock', lock, held)
  if other then
    return other
  end
  local past = past_of(record, seen[3])
  if string.find(' ' .. past .. ' ', ' ' .. hold .. ' ', 1, true) then
    -- This is a late copy of a request that was granted: the turn of this hold has ended.
    return refusal(2, lock, holder_of(lock), seen)
  end
  local period, offset = redis.call('HGET', newest, 'period_ms'), redis.call('HGET', newest, 'offset_ms')
  local replans = period and (period ~= period_ms or offset ~= offset_ms)
  if replans and repeats ~= '2' then
    return 'WRONGKIND a lock with slots of ' .. period .. ' ms and an offset of '
      .. (offset or '0') .. ' ms'
  end
  local requested = tonumber(requested_ms)
  local mine = nearest_slot(requested, period_ms, offset_ms)
  local slot, state = not replans and whole(seen[1]), seen[2]
  -- Slot numbers only rise: setting the clock back does not open an earlier slot.
  local closed = slot and slot > mine
  if slot == mine then
    closed = state == 'done' or (state == 'failed' and repeats ~= '1')
      or (state == 'running' and held == 0 and most_once == '1')
  end
  if repeats == '2' then
    -- A job that runs again does not take the next slot, unless a turn has taken that slot, and the
    -- slot has begun or begins soon. A later slot was recorded by mistake or while the clock was
    -- ahead.
    local latest = math.max(requested, now_ms()) + math.floor(tonumber(period_ms) / 4)
    local soon = slot_at(latest, period_ms, offset_ms)
    closed, mine = false, slot_at(requested, period_ms, offset_ms)
    if slot and slot > mine and slot <= soon then
      mine = slot
    end
  end
  if closed or held > 0 then
    local holder = holder_of(lock)
    seen = not closed and turn_of(newest, holder) or seen
    return refusal(closed and 3 or 2, lock, holder, seen)
  end
  local missed = 0
  if slot == mine then
    missed = whole(seen[8]) or 0
  elseif slot and slot < mine then
    missed = mine - slot - 1
    if state == 'open' then
      missed = missed + 1 + (whole(seen[8]) or 0)
    end
  end
  local last = newest == record and seen or seen_in(newest)
  -- The grant is first: a server without memory refuses only the first write of a script.
  local refused = grant(lock, hold, lease_ms)
  if refused then
    return refused
  end
  local now = digits(now_ms())
  local is_same = seen[1] == digits(mine) and (seen[9] or '') == id and not replans
  local repeating = is_same or repeats == '2'
  for _, key in ipairs(records(newest, record)) do
    local before = key == record and seen or last
    local list = key == record and past or past_of(key, before[3])
    -- If the last turn was a repetition and never ended, keep the record that it has replaced.
    local is_nested = repeating and before[2] == 'running' and redis.call('HGET', key, 'was_state')
    local cleared = redis.pcall('HDEL', key, 'ended_ms', 'rc', unpack(is_nested and {} or WAS))
    if type(cleared) == 'table' then
      -- A grant without a record could run twice.
      ungrant(lock, hold)
      return cleared.err
    end
    local is_kept = before[2] and (before[2] ~= 'open' or replans)
    if repeating and is_kept and not is_nested then
      local saved = { 'was_ttl_ms', digits(redis.call('PTTL', key)) }
      for n = 1, #FIELDS do
        if before[n] then saved[#saved + 1], saved[#saved + 2] = WAS[n], before[n] end
      end
      redis.call('HSET', key, unpack(saved))
    end
    redis.call('HSET', key, 'slot', digits(mine), 'state', 'running', 'hold', hold, 'by', by,
      'at_ms', now, 'missed', digits(missed), 'period_ms', period_ms, 'offset_ms', offset_ms,
      'id', id, 'past', string.match(list, '^[^ ]* ?[^ ]* ?[^ ]* ?[^ ]*'))
    redis.call('PEXPIRE', key, keep_ms)
  end
  local has_died = last[2] == 'running' and not replans
  return granted(mine, missed, now_ms(), has_died and last or {})
end

-- [finish] ----------------------------------------------------------------------------------------

-- Records how the turn of this hold ended, frees the lock, and wakes the waiters.
--
-- lock      hash: one field per hold, `uuid:n`
-- newest    hash: the turn that began last under this name
-- record    hash: the turn of this hold
-- hold      this hold's field
-- channel   where the waiters listen; the message is "0", as Redisson sends it
-- state     `done`, `failed`, or `open` for a turn that no client began
-- rc        the exit code; empty if there is none
-- keep_ms   how long the record is kept
-- slot      the number of the slot; 0 for a turn per id. This and the following arguments are for a
--           record that was lost during the job
-- period_ms the length of a slot; 0 for a turn per id
-- offset_ms the time of the first slot
-- id        the id of the turn; empty with slots
-- by        the name that operators see
-- began_ms  when the turn began
-- Returns  1 + n  released, and n connections got the message
--          1      the hold no longer had the lock, but its turn was already recorded as `done`, by
--                 an earlier copy of this request or by `mark`
--          0      the hold no longer had the lock, in all other cases: a turn that was still
--                 running is recorded as `failed` in place of `done`. A copy of a request with
--                 `failed` or `open` gets 0, too

local function finish(lock, newest, record, hold, channel, state, rc, keep_ms, slot, period_ms, offset_ms, id, by, began_ms)
  -- HDEL is first, because it works when the server is out of memory. After it, HSET works, too.
  if redis.call('HDEL', lock, hold) == 1 then
    restore(newest, record, hold, slot, period_ms, offset_ms, id, by, began_ms)
    record_end(newest, record, hold, state, rc, keep_ms)
    local receivers = redis.pcall('PUBLISH', channel, '0')
    return 1 + (type(receivers) == 'number' and receivers or 0)
  end
  local was = redis.pcall('HGET', record, 'hold') == hold and redis.pcall('HGET', record, 'state')
  if was == 'running' then
    record_end(newest, record, hold, state == 'done' and 'failed' or state, rc, keep_ms)
  end
  return was == 'done' and 1 or 0
end

-- [mark] ------------------------------------------------------------------------------------------

-- Records how the turn of this hold ended, while the hold still has the lock. Replicas confirm this
-- write.
--
-- lock      hash: one field per hold, `uuid:n`
-- newest    hash: the turn that began last under this name
-- record    hash: the turn of this hold
-- hold      this hold's field
-- state     `done` or `failed`
-- rc        the exit code; empty if there is none
-- keep_ms   how long the record is kept
-- slot      the number of the slot; 0 for a turn per id. This and the following arguments are for a
--           record that was lost during the job
-- period_ms the length of a slot; 0 for a turn per id
-- offset_ms the time of the first slot
-- id        the id of the turn; empty with slots
-- by        the name that operators see
-- began_ms  when the turn began
-- Returns  1  noted
--          0  this hold no longer has the lock; nothing was changed

local function mark(lock, newest, record, hold, state, rc, keep_ms, slot, period_ms, offset_ms, id, by, began_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  -- HDEL works when the server is out of memory. After it, HSET works, too. No record has this field.
  redis.pcall('HDEL', record, '')
  restore(newest, record, hold, slot, period_ms, offset_ms, id, by, began_ms)
  return record_end(newest, record, hold, state, rc, keep_ms) or 1
end

-- [look] ------------------------------------------------------------------------------------------

-- Returns the recorded facts about a turn, and the server's time.
--
-- lock    hash: one field per hold, `uuid:n`
-- newest  hash: the turn that began last under this name
-- record  hash: a turn
-- Returns   { 0, now, ttl, holder, ... }
--             ttl in ms, -2 if the lock is free; the record of the holder's turn if `record` is
--             missing

local function look(lock, newest, record)
  local holder, seen = holder_of(lock), seen_in(record)
  seen = not seen[1] and turn_of(newest, holder) or seen
  return refusal(0, lock, holder, seen)
end
