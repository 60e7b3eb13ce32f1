-- The id of a hold, in this library and in Redisson: the random UUID of its client, a colon, and a
-- number.
local ID = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:.'

-- Returns which kind of lock the hash `name` is, judged by its fields. Each field contains the id
-- of a hold, except `mode`, which marks a read-write lock. Any other hash belongs to another
-- program, and no step may change it. So every step that could change a hash calls this function
-- first.
local function kind_of_hash(name, fields, mode)
  -- A hash with a single field needs no such read: a read-write lock has `mode` and at least one
  -- hold. This saves a command at each refusal of a plain lock.
  if fields > 1 and mode == nil then
    mode = redis.call('HGET', name, 'mode')
  end
  local all = fields <= 64 and redis.call('HGETALL', name)
  if all and all[1] == 'mode' then
    mode = all[2]
  end
  local kind = fields == 1 and 'a plain lock' or 'a group lock'
  if mode == 'read' or mode == 'write' then
    kind = 'a read-write lock'
  end
  -- Of a large hash, only a few fields are read: reading all of them at each request would keep the
  -- server busy. A read-write lock may have thousands of readers, and its mode is enough.
  all = all or kind == 'a read-write lock' and {} or redis.call('HSCAN', name, 0, 'COUNT', 8)[2]
  for n = 1, #all, 2 do
    local field, value = all[n], all[n + 1]
    local id, number = field, '^%d+$'
    if kind == 'a group lock' then
      -- In a group, the field of a value contains its holder. The end of the hold and its count are
      -- in fields of their own.
      id, number = string.match(field, '^[^:]+:(.+):expire_time$'), '^%-?%d+$'
      id = id or string.match(field, '^[^:]+:(.+):lock_count$')
      if not id then id, number = value, '' end
    end
    local fits = string.find(id, ID) and string.find(value, number)
    if not fits and (field ~= 'mode' or kind ~= 'a read-write lock') then
      return 'a hash that is not a lock'
    end
  end
  return kind
end

-- Returns an error text if the hash is not a lock of this `kind`; false if it is one or if it has
-- no fields.
local function wrong_kind(kind, name, fields, mode)
  local found = fields > 0 and kind_of_hash(name, fields, mode) or kind
  return found ~= kind and 'WRONGKIND ' .. found
end
