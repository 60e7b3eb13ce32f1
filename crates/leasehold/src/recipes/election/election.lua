-- An election: a fenced lock whose holder, the leader, has an entry that describes it.
-- A line `-- [NAME]` begins a section: a step, or Lua that several steps use.

-- [lead] ------------------------------------------------------------------------------------------

-- Makes this hold the leader if there is none, with a lease, a fencing token and an entry.
--
-- lock        hash: one field per hold, `uuid:n`
-- leader      hash: the entry of the leader: id, token, payload, since_ms
-- counter     text: the last token
-- hold        this hold's field
-- lease_ms    how long the hold lasts without renewal
-- counter_ms  how long the counter outlives its last use; 0 forever
-- payload     the string that this candidate has set
-- terms       where the observers listen; the message is the token
-- Returns   { 1, token }  granted; a repeated request changes nothing
--           n    another hold leads for n ms more; -1 without expiry
--           text WRONGKIND: not a plain lock, or not a counter

local function lead(lock, leader, counter, hold, lease_ms, counter_ms, payload, terms)
  local fields = redis.call('HLEN', lock)
  if fields > 0 then
    if redis.call('HEXISTS', lock, hold) == 0 then
      --[[USES wrong_kind]]
      return wrong_kind('a plain lock', lock, fields) or redis.call('PTTL', lock)
    end
    -- Observers see the token of the entry, so it is the token of this term, even if the counter
    -- was set or removed since.
    local token = redis.pcall('HGET', leader, 'id') == hold and redis.call('HGET', leader, 'token')
    -- While this hold exists, no other hold draws a token.
    token = token or redis.call('GET', counter) or ''
    return { 1, tonumber(string.match(token, '^%d+$')) or 0 }
  end
  local token, wrong = next_token(counter)
  if not token then
    return wrong
  end
  -- Write the token first, because an unused token does no harm. Then write the entry, which counts
  -- only with its hold. Write the hold last: a hold without its entry would look like a Java
  -- leader.
  note(counter, token, counter_ms)
  local digits = string.format('%.0f', token)
  redis.call('HSET', leader, 'id', hold, 'token', digits, 'payload', payload,
    'since_ms', string.format('%.0f', now_ms()))
  redis.call('PEXPIRE', leader, lease_ms)
  local refused = grant(lock, hold, lease_ms)
  if refused then
    return refused
  end
  -- An ACL may deny the channel. In that case the observers learn of this term when they poll.
  redis.pcall('PUBLISH', terms, digits)
  return { 1, token }
end

-- [resign] ----------------------------------------------------------------------------------------

-- Ends the term of this hold if it still leads, removes its entry, and wakes candidates and
-- observers.
--
-- lock     hash: one field per hold, `uuid:n`
-- leader   hash: the entry of the leader: id, token, payload, since_ms
-- hold     this hold's field
-- channel  where the candidates listen; the message is "0", as Redisson sends it
-- terms    where the observers listen; the message is "0"
-- Returns  1 + n  resigned, and n connections got the first message
--          0      this hold's lease ran out; nothing was changed

local function resign(lock, leader, hold, channel, terms)
  -- HDEL is first, because it works when the server is out of memory.
  if redis.call('HDEL', lock, hold) == 0 then
    return 0
  end
  -- Without its hold the entry does not count, so a failure here does no harm.
  redis.pcall('DEL', leader)
  local receivers = redis.pcall('PUBLISH', channel, '0')
  redis.pcall('PUBLISH', terms, '0')
  return 1 + (type(receivers) == 'number' and receivers or 0)
end

-- [renew] -----------------------------------------------------------------------------------------

-- Renews this hold and its entry: both last for at least `lease_ms` from now.
--
-- lock      hash: one field per hold, `uuid:n`
-- leader    hash: the entry of the leader: id, token, payload, since_ms
-- hold      this hold's field
-- lease_ms  how long the hold lasts from now
-- most_ms   a lease longer than this is shortened to `lease_ms`; 0 for never
-- Returns   n  renewed, and n ms remain now
--           0  this hold no longer leads; nothing was changed

local function renew(lock, leader, hold, lease_ms, most_ms)
  if redis.call('HEXISTS', lock, hold) == 0 then
    return 0
  end
  local ttl = renewed(lock, lease_ms, most_ms)
  redis.pcall('PEXPIRE', leader, ttl)
  return ttl
end

-- [look] ------------------------------------------------------------------------------------------

-- Returns the current leader. An entry counts only if it names the hold that has the lock.
--
-- lock     hash: one field per hold, `uuid:n`
-- leader   hash: the entry of the leader: id, token, payload, since_ms
-- counter  text: the last token
-- Returns  { ttl, id, token, payload, since_ms }  ttl in ms, -1 without expiry
--          { ttl, id, last }  a holder without an entry, such as a Java client, and the last token,
--                             or an empty string
--          { -2 }             no leader; a hold that a client has left to the server does not lead
--          text WRONGKIND: not a plain lock

local function look(lock, leader, counter)
  local fields = redis.call('HLEN', lock)
  if fields == 0 then
    return { -2 }
  end
  local other = wrong_kind('a plain lock', lock, fields)
  if other then
    return other
  end
  local id, ttl = redis.call('HKEYS', lock)[1], redis.call('PTTL', lock)
  if not can_be_renewed(lock, id) then
    return { -2 }
  end
  if redis.pcall('HGET', leader, 'id') == id then
    return { ttl, id, redis.call('HGET', leader, 'token') or '',
      redis.call('HGET', leader, 'payload') or '', redis.call('HGET', leader, 'since_ms') or '' }
  end
  local last = redis.pcall('GET', counter)
  return { ttl, id, type(last) == 'string' and last or '' }
end
