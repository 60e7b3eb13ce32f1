-- A longer name is counted, and not listed. No number is longer text.
local LONGEST_NAME = 1000
local LONGEST_NUMBER = 20

-- Of what type a key is, if it may be one of ours; false if not. nil for one of the keys that the user
-- may not look at.
local function type_of(key)
  local kind = redis.pcall('TYPE', key).ok
  if kind == 'string' then
    local length = redis.pcall('STRLEN', key)
    if type(length) ~= 'number' then
      return nil
    end
    return length <= LONGEST_NUMBER and kind
  end
  if not kind then
    return nil
  end
  return (kind == 'hash' or kind == 'list' or kind == 'zset') and kind
end

-- Says which keys there are that may be ours: one page of a walk over all keys. Nothing else waits
-- for longer than a page takes.
--
-- cursor   where the walk goes on; 0 at its beginning
-- pattern  what the keys have to fit
-- count    how many keys the server looks at, about
-- Returns  { cursor, total, keys, denied, long }
--          cursor is 0 at the walk's end; total is how many keys the server has, -1 if it does not
--          say; keys are { key, type }; denied is how many keys the user may not look at, and long
--          how many have a name that is too long to be listed

local function list(cursor, pattern, count)
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
  local keys, denied, long = {}, 0, 0
  for _, key in ipairs(page[2]) do
    local kind = type_of(key)
    if kind == nil then
      denied = denied + 1
    elseif kind and #key > LONGEST_NAME then
      long = long + 1
    elseif kind then
      keys[#keys + 1] = { key, kind }
    end
  end
  local total = redis.pcall('DBSIZE')
  return { page[1], type(total) == 'number' and total or -1, keys, denied, long }
end
