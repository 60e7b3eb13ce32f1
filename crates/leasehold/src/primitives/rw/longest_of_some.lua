-- Finds the longest time that one of a few read holds has left, or the time of the first that has
-- more than `enough`; 0 if those holds are all over. Looks at a few only: there may be thousands,
-- and each is a read of a key of its own.
local function longest_of_some(lock, enough)
  -- An ACL may deny it. Then all holds count as over, and `trim_expiry` looks at each of them.
  local some, longest = redis.pcall('HSCAN', lock, 0, 'COUNT', 64), 0
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then longest = math.max(longest, remaining_ms(lock, fields[n], count)) end
    if longest > enough then break end
  end
  return longest
end
