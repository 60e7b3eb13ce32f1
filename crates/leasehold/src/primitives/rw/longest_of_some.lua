-- How long the longest of the read holds that come to hand first has left, or the first that
-- has more than `enough`; 0 when none of those is there.
local function longest_of_some(lock, enough)
  -- An ACL may deny it.
  local some, longest = redis.pcall('HSCAN', lock, 0, 'COUNT', 64), 0
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then longest = math.max(longest, remaining_ms(lock, fields[n], count)) end
    if longest > enough then break end
  end
  return longest
end
