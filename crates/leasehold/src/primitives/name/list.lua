-- A name that is longer than this is counted, but not listed. The text of a number never exceeds
-- `LONGEST_NUMBER`.
local LONGEST_NAME = 1000
local LONGEST_NUMBER = 20

-- Returns the type of a key if the key may be one of ours; false if not; nil if the user is not
-- allowed to read the key.
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

-- Lists the keys that may be ours: one page of a scan over all keys. It blocks other requests only
-- for the time that one page takes.
--
-- cursor   where the scan continues; 0 at its beginning
-- pattern  the pattern that the keys must match
-- count    about how many keys the server scans
-- Returns  { cursor, total, keys, denied, long }
--          cursor  0 at the end of the scan
--          total   how many keys the server has, -1 if it does not report it
--          keys    a list of { key, type }
--          denied  how many keys the user is not allowed to read
--          long    how many names are too long to be listed

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
