-- Renews several holds: each lasts for at least a lease from now.
--
-- count      number of holds
-- first_key  index in KEYS of their locks: hashes with one field per hold, `uuid:n`
-- first_arg  index in ARGV of the lease in ms, followed by the holds' fields
-- Returns    a list with the numbers, from 1, of the holds that must be renewed one by one: they
--            no longer exist, their end is fixed, their key can't be read, or its expiry does
--            not fit the lease. Nothing was changed for them.

local function renew_many(count, first_key, first_arg)
  local lease_ms = ARGV[first_arg]
  local most, has_gt, renew_alone = tonumber(lease_ms), true, {}
  for n = 1, count do
    local lock = KEYS[first_key + n - 1]
    -- An error for one key must not stop the renewal of the others.
    local value = redis.pcall('HGET', lock, ARGV[first_arg + n])
    local good = type(value) == 'string' and value ~= KEPT
    if good then
      -- Never shortened: an earlier request can arrive after a later one.
      local set = has_gt and redis.pcall('PEXPIRE', lock, lease_ms, 'GT')
      if set ~= 1 then
        -- An error means a server before 7.0, which does not know GT.
        has_gt = set == 0
        local ttl = redis.call('PTTL', lock)
        if ttl >= 0 then
          -- Written even if nothing changes: a client that waits for replicas waits for this write.
          redis.call('PEXPIRE', lock, math.max(ttl, most))
        end
        -- Otherwise the key has no expiry, or it lasts more than a second longer than the lease
        -- because the server's clock was set back.
        good = ttl >= 0 and ttl <= most + 1000
      end
    end
    if not good then
      renew_alone[#renew_alone + 1] = n
    end
  end
  return renew_alone
end
