use super::Stale;

/// Returns a script that sets a key. `KEYS[1]` is the fence and `KEYS[2]` the key, `ARGV[1]` the
/// token and `ARGV[2]` the value. It replies `1`.
///
/// See [`eval`] for the fence, and for the reply to a late token.
#[must_use]
pub fn set() -> String {
    eval("redis.call('SET', KEYS[2], ARGV[2])")
}

/// Returns a script that sets fields of a hash. `KEYS[1]` is the fence and `KEYS[2]` the hash,
/// `ARGV[1]` the token. Fields and values follow. It replies `1`.
///
/// See [`eval`] for the fence, and for the reply to a late token.
#[must_use]
pub fn hset() -> String {
    eval("redis.call('HSET', KEYS[2], unpack(ARGV, 2))")
}

/// Returns a script that checks the token and then runs `body`, both in one step. `body` is Lua. It
/// can use `KEYS[2]` and the following keys, and `ARGV[2]` and the following arguments. The script
/// replies with what `body` returns, or with `1`.
///
/// `KEYS[1]` is the fence: a key that has the greatest token so far, and nothing else. `ARGV[1]` is
/// the token. In a cluster, all keys need the same hash tag. If the token is smaller than the
/// fence, `body` does not run, and the reply is the error `FENCED` with the fence. [`stale`]
/// recognises it.
///
/// Keep the fence as long as the data. Give it no expiry, or one that is longer than the longest
/// pause of a holder. The script does not renew an expiry, so set it again in `body`. If the server
/// evicts keys (`maxmemory-policy allkeys-*`), it may evict the fence, and a late writer is
/// accepted again. If `body` fails, the fence still rises, because Redis does not roll back
/// scripts.
///
/// # Examples
///
/// ```
/// let take_one = leasehold::fence::redis::eval("return redis.call('DECR', KEYS[2])");
/// assert!(take_one.contains("'DECR'"));
/// // EVAL take_one 2 {stock:7}:fence {stock:7}:left TOKEN
/// ```
#[must_use]
pub fn eval(body: &str) -> String {
    // Wrap `body` in a block, so that it may end with `return`.
    format!("{CHECK}do\n{body}\nend\nreturn 1\n")
}

const CHECK: &str = "\
local function to_token(text)
  local number = tonumber(text)
  -- NaN and infinity are numbers too, but have no rest of 0.
  if number and number % 1 == 0 and number >= 0 and number < 9007199254740992 then return number end
end
local token = to_token(ARGV[1])
if not token then
  return redis.error_reply('ERR ARGV[1] is not a fencing token below 2^53')
end
local fence = to_token(redis.call('GET', KEYS[1]) or '0')
if not fence then
  return redis.error_reply('ERR KEYS[1] does not contain a fencing token')
end
if token < fence then
  return redis.error_reply('FENCED ' .. string.format('%.0f', fence))
end
if token > fence then
  redis.call('SET', KEYS[1], string.format('%.0f', token), 'KEEPTTL')
end
";

/// Returns the refusal that an error from one of these scripts reports; `None` for any other error.
/// `message` is the error's message, as the driver shows it.
///
/// # Examples
///
/// ```
/// use leasehold::fence::{Stale, redis};
///
/// let error = "FENCED 1790000000000009";
/// assert_eq!(redis::stale(7, error), Some(Stale::new(7).with_fence(1790000000000009)));
/// assert_eq!(redis::stale(7, "ERR unknown command"), None);
/// ```
#[must_use]
pub fn stale(token: u64, message: &str) -> Option<Stale> {
    // Drivers add other text before and after the message, and some separate the first word from
    // the rest.
    let (_, rest) = message.split_once("FENCED")?;
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let fence = digits[..end.unwrap_or(digits.len())].parse();
    Some(match fence {
        Ok(fence) => Stale::new(token).with_fence(fence),
        Err(_) => Stale::new(token),
    })
}
