-- Reads some of the lock's read holds, and returns the longest remaining time among them; 0 if all
-- of these have ended. Returns early once a hold has more than `enough` ms. Reads only some,
-- because there may be thousands, and each costs a read of a key of its own.
local function longest_of_some(lock, enough)
  -- An ACL may deny it. Then all holds count as ended, and `trim_expiry` checks each of them.
  local some, longest = redis.pcall('HSCAN', lock, 0, 'COUNT', 64), 0
  local fields = some[2] or {}
  for n = 1, #fields, 2 do
    local count = fields[n] ~= 'mode' and tonumber(string.match(fields[n + 1], '^%d+$'))
    if count then longest = math.max(longest, remaining_ms(lock, fields[n], count)) end
    if longest > enough then break end
  end
  return longest
end
