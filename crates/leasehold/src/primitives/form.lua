-- The id of a hold, ours and Redisson's: the random UUID of its client, a colon, and a number.
local ID = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:.'

-- Which kind of lock the hash `name` is. Its `fields` say so by their form: each has the id of a
-- hold in it, and `mode` is the field of a read-write lock. Any other hash belongs to somebody
-- else, and nothing here may change it. Every step that could ends up here.
local function form_of(name, fields, mode)
  -- A plain lock has a single field and needs no look at its mode: this is asked at each refusal.
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
  -- Of a large hash a few fields say enough: to go through all at each request would keep the
  -- server busy. Readers may be thousands in one reply, and their mode says as much.
  all = all or kind == 'a read-write lock' and {} or redis.call('HSCAN', name, 0, 'COUNT', 8)[2]
  for n = 1, #all, 2 do
    local field, value = all[n], all[n + 1]
    local id, number = field, '^%d+$'
    if kind == 'a group lock' then
      -- A value has its holder in it. Its end and its count are beside it.
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

-- What stands in the way of a step for locks of this `kind`; false if nothing does.
local function other_than(kind, name, fields, mode)
  local found = fields > 0 and form_of(name, fields, mode) or kind
  return found ~= kind and 'WRONGKIND ' .. found
end
