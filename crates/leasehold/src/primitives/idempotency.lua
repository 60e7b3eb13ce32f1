-- Leaves a request's reply under its marker, so that the same request changes nothing when it
-- comes a second time. Gives false, or what stands in the way.
local function remember(marker, reply)
  return redis.pcall('SET', marker, reply, 'PX', 60000).err or false
end

-- The number at `key`; nothing when there is none; nothing and what stands in the way
-- when it is something else.
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
  -- More digits than these are not exact once they are written out again.
  if #text > 14 or not string.match(text, '^-?%d+$') then
    return nil, 'WRONGKIND a text that is not a count'
  end
  return tonumber(text)
end
