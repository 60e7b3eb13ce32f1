-- Whether one of the first read holds that come to hand is there. `false` is no answer.
local function anyone(lock)
  -- An ACL may deny it.
  local some = redis.pcall('HSCAN', lock, 0, 'COUNT', 64)
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count and left(lock, fields[n], count) > 0 then
      return true
    end
  end
  return false
end
