-- No name of ours that is longer is listed, and no number is longer text.
local LONGEST_NAME = 1000
local LONGEST_NUMBER = 20

-- Of what type a key is, if it may be one of ours; false if not. A user may look at some keys only.
local function type_of(key)
  local kind = #key <= LONGEST_NAME and redis.pcall('TYPE', key).ok
  if kind == 'string' then
    local length = redis.pcall('STRLEN', key)
    return type(length) == 'number' and length <= LONGEST_NUMBER and kind
  end
  return (kind == 'hash' or kind == 'list' or kind == 'zset') and kind
end

-- Says which keys there are that may be ours: one page of a walk over all keys. Nothing else waits
-- for longer than a page takes.
--
-- cursor   where the walk goes on; 0 at its beginning
-- pattern  what the keys have to fit
-- count    how many keys the server looks at, about
-- Returns  { cursor, total, keys }  0 at the walk's end; how many keys the server has, -1 if it
--                                   does not say; keys are { key, type }

local function list(cursor, pattern, count)
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
  local keys = {}
  for _, key in ipairs(page[2]) do
    local kind = type_of(key)
    if kind then
      keys[#keys + 1] = { key, kind }
    end
  end
  local total = redis.pcall('DBSIZE')
  return { page[1], type(total) == 'number' and total or -1, keys }
end
