-- Returns the number at `key`; nil if the key does not exist; nil and an error text if the key
-- holds anything else.
local function number_at(key)
  local text = redis.pcall('GET', key)
  if not text then
    return nil
  end
  if type(text) == 'table' then
    if string.find(text.err, 'WRONGTYPE', 1, true) then
      return nil, 'WRONGKIND a ' .. redis.call('TYPE', key).ok
    end
    return nil, text.err
  end
  -- With more digits, Lua does not convert a number back to a text exactly.
  if #text > 14 or not string.match(text, '^-?%d+$') then
    return nil, 'WRONGKIND a text that is not a count'
  end
  return tonumber(text)
end
