-- How long the longest of a few read holds has left, or the first of them that has more than
-- `enough`; 0 if those are all over. A few: there may be thousands, and each costs a look at a
-- key of its own.
local function longest_of_some(lock, enough)
  -- An ACL may deny it. Then all count as over, and `trim_expiry` looks at each of them.
  local some, longest = redis.pcall('HSCAN', lock, 0, 'COUNT', 64), 0
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then longest = math.max(longest, remaining_ms(lock, fields[n], count)) end
    if longest > enough then break end
  end
  return longest
end
