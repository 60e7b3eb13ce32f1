-- A lock with more fields than this is shown in part, and so is a stranger's hash.
local MOST = 1000
-- How Redisson writes that a permit never ends.
local NEVER = 922337203685477

local function is_a(key, kind)
  return redis.call('TYPE', key).ok == kind
end

-- A number as text is never longer than this.
local function short_text(key)
  return is_a(key, 'string') and redis.call('GETRANGE', key, 0, 31) or ''
end

-- The fields of a hash, each with what is left of the read hold that it may be.
local function fields_of(name)
  local mode = redis.call('HGET', name, 'mode')
  local some, fields = redis.call('HSCAN', name, 0, 'COUNT', MOST)[2], {}
  for n = 1, #some, 2 do
    local count = mode and tonumber(string.match(some[n + 1], '^%d+$'))
    local left_ms = count and remaining_ms(name, some[n], count) or -2
    fields[#fields + 1] = { string.sub(some[n], 1, 500), string.sub(some[n + 1], 1, 500), left_ms }
  end
  return fields
end

local function permits_of(leases)
  local some, permits = redis.call('ZRANGE', leases, 0, MOST - 1, 'WITHSCORES'), {}
  for n = 1, #some, 2 do
    local ends = math.max(0, math.min(tonumber(some[n + 1]), NEVER))
    permits[#permits + 1] = { string.sub(some[n], 1, 500), ends }
  end
  return permits
end

local function line_of(queue, waiters)
  local line = {}
  for _, waiter in ipairs(redis.call('LRANGE', queue, 0, MOST - 1)) do
    local alive_until = is_a(waiters, 'zset') and redis.call('ZSCORE', waiters, waiter)
    line[#line + 1] = { waiter, tonumber(alive_until) or 0 }
  end
  return line
end

-- Says what stands under a name, of whatever type, and beside it.
--
-- name     the key itself
-- leases   sorted set: the permits in use, each with the end of its lease in ms
-- queue    list: who waits for a fair lock
-- waiters  sorted set: until when each of ours in that list counts as alive, in ms
-- tokens   text: the fencing token that was given last
-- opened   text: when a latch was open last
-- Returns  { type, ttl, now, text, fields, held, permits, waiting, token, opened }
--          text is that of a text; fields are those of a hash, { field, value, left };
--          held is how many permits there are in use, permits are { id, end };
--          waiting is { id, end }, 0 for one of Redisson's; opened is 1 when it is there

local function look(name, leases, queue, waiters, tokens, opened)
  local kind = redis.call('TYPE', name).ok
  local leased = is_a(leases, 'zset')
  return {
    kind,
    redis.call('PTTL', name),
    now_ms(),
    short_text(name),
    kind == 'hash' and fields_of(name) or {},
    leased and redis.call('ZCARD', leases) or 0,
    leased and permits_of(leases) or {},
    is_a(queue, 'list') and line_of(queue, waiters) or {},
    short_text(tokens),
    redis.call('EXISTS', opened),
  }
end
