//! Names: which strings are allowed, and the keys and channels derived from a name.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::text::Shown;

/// The key of the register of all clients: a key of our own, which Redisson does not use.
pub(crate) const CLIENTS: &str = "leasehold:clients";

/// Returns the key of a client's announcement: a key of our own.
pub(crate) fn client_key(id: &str) -> String {
    format!("leasehold:client:{id}")
}

/// A checked name, or a part of the data under that name. Cheap to clone.
///
/// Comparisons include the part, so a plain name never equals the key of a part.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The name on the server, with the client's prefix.
    name: Arc<str>,
    prefix: Prefix,
    part: Option<Arc<KeyPart>>,
}

/// The length of the client's prefix in a name, in bytes. Names are compared as they are on the
/// server, because clients with different prefixes may use the same name on the server.
#[derive(Clone, Copy, Default)]
struct Prefix(usize);

impl PartialEq for Prefix {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Prefix {}

impl Hash for Prefix {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Prefix {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

/// The part of the data that a key represents, if it does not represent all data under one name.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
enum KeyPart {
    /// These values of a group.
    Fields(String),
    /// The locks of all these names.
    Names(Vec<Arc<str>>),
    /// A `RedLock` over these locks: the server and the name of each lock.
    Members(Vec<(String, Key)>),
}

impl Key {
    /// The longest name, in bytes. A longer name would stall the server for all clients while it is
    /// read.
    pub(crate) const MAX_BYTES: usize = 64 * 1024;

    pub(crate) fn parse(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::new(
                ErrorKind::Misuse,
                "a lock's name is empty; give it a name that says what it protects",
            ));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "the name `{}` is {} bytes long, the limit is {}; hash the long part",
                    Shown(name),
                    name.len(),
                    Self::MAX_BYTES
                ),
            ));
        }
        // Nothing else is refused: Redisson accepts any string as a name, and both libraries must
        // be able to lock it. `Shown` makes unusual names harmless in errors and logs.
        Ok(Self {
            name: name.into(),
            prefix: Prefix::default(),
            part: None,
        })
    }

    /// Returns the key for a name with a prefix, like Redisson's `NameMapper`: all keys and
    /// channels are derived from the prefixed name.
    pub(crate) fn prefixed(prefix: &str, name: &str) -> Result<Self> {
        // Check the name without the prefix first: a prefix does not make an empty name valid.
        let key = Self::parse(name)?;
        if prefix.is_empty() {
            return Ok(key);
        }
        let key = Self::parse(&format!("{prefix}{name}"))?;
        Ok(Self {
            prefix: Prefix(prefix.len()),
            ..key
        })
    }

    /// Returns the name with its prefix, as the server stores it.
    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the name as the user gave it.
    pub(crate) fn given(&self) -> &str {
        &self.name[self.prefix.0..]
    }

    /// Returns the key of these values of the group.
    pub(crate) fn fields(&self, fields: &str) -> Self {
        self.with_part(KeyPart::Fields(fields.into()))
    }

    /// Returns the key of a `RedLock` over these locks, each with its server.
    pub(crate) fn members(&self, members: Vec<(String, Self)>) -> Self {
        self.with_part(KeyPart::Members(members))
    }

    /// Returns the key for a lock over several names, with the string that errors and logs show.
    pub(crate) fn joined(keys: &[&Self]) -> Self {
        let names: Vec<_> = keys.iter().map(|key| Arc::clone(&key.name)).collect();
        let given: Vec<_> = keys.iter().map(|key| key.given()).collect();
        Self {
            // This string is only for errors and logs. Comparisons use the names one by one,
            // because `a + b` may also be the name of one lock.
            name: given.join(" + ").into(),
            prefix: Prefix::default(),
            part: Some(Arc::new(KeyPart::Names(names))),
        }
    }

    fn with_part(&self, part: KeyPart) -> Self {
        Self {
            name: Arc::clone(&self.name),
            prefix: self.prefix,
            part: Some(Arc::new(part)),
        }
    }

    /// Returns the name to which an additional key belongs, and the kind of that key. `None` for a
    /// key that is a name itself.
    pub(crate) fn parse_extra(key: &str) -> Option<(ExtraKey, &str)> {
        const OURS: &str = "leasehold:";
        const THEIRS: [&str; 4] = [
            "redisson_lock_timeout:",
            "redisson_lock_token:",
            "redisson_unlock_latch:",
            "redisson_bqs:",
        ];
        if let Some(tag) = key.strip_prefix("redisson_lock_queue:") {
            return Some((ExtraKey::Queue, name_of(tag)));
        }
        if let Some(rest) = key.strip_prefix(OURS) {
            return Some(match rest.strip_suffix(":opened") {
                Some(tag) => (ExtraKey::Opening, name_of(tag)),
                None => (ExtraKey::Other, rest),
            });
        }
        if THEIRS.iter().any(|prefix| key.starts_with(prefix)) || key.contains(":rwlock_timeout:") {
            return Some((ExtraKey::Other, key));
        }
        // A key that ends in `:timeout` may also be a name of its own, which its type shows.
        let tag = key.strip_suffix(":timeout").filter(|tag| tag.contains('{'));
        tag.map(|tag| (ExtraKey::Leases, name_of(tag)))
    }

    /// Returns `x` for `{x}`, because both names have the same additional keys. `None` for any
    /// other name.
    pub(crate) fn without_braces(&self) -> Option<Self> {
        let name = self.name.strip_prefix('{')?.strip_suffix('}')?;
        // There is no such name for `{}`, because a name can't be empty. Nor is there one for
        // `{{x}}`: Redisson adds no braces to `{x}`, which has some already, so the two share no
        // additional key.
        let is_other = !name.is_empty() && !name.contains('{');
        is_other.then(|| Self {
            name: name.into(),
            prefix: Prefix::default(),
            part: None,
        })
    }

    /// Returns `{x}` for `x`.
    pub(crate) fn in_braces(&self) -> Self {
        Self {
            name: format!("{{{}}}", self.name).into(),
            prefix: Prefix::default(),
            part: None,
        }
    }

    /// Returns the channel of releases of the plain lock (Redisson's channel).
    pub(crate) fn lock_channel(&self) -> String {
        self.with_prefix("redisson_lock__channel")
    }

    /// Returns the key of the waiters for a fair lock, in the order of their arrival (Redisson's
    /// list).
    pub(crate) fn fair_queue(&self) -> String {
        self.with_prefix("redisson_lock_queue")
    }

    /// Returns the key with the time at which Redisson regards each waiter in a fair lock's queue
    /// as dead (Redisson's sorted set).
    pub(crate) fn fair_timeouts(&self) -> String {
        self.with_prefix("redisson_lock_timeout")
    }

    /// Returns the key with the waiters of this library for a fair lock, and the times until which
    /// they count as alive: a key of our own.
    pub(crate) fn fair_waiters(&self) -> String {
        format!("{}:waiters", self.with_prefix("leasehold"))
    }

    /// Returns the key of the counter of fencing tokens (Redisson's key).
    pub(crate) fn token_counter(&self) -> String {
        self.with_prefix("redisson_lock_token")
    }

    /// Returns the channel on which releases of a read-write lock's two sides are published
    /// (Redisson's channel).
    pub(crate) fn rw_channel(&self) -> String {
        self.with_prefix("redisson_rwlock")
    }

    /// Returns the key of one read hold, which expires with its lease. This is Redisson's key:
    /// Redisson numbers the re-entries, which this library counts in the client.
    pub(crate) fn read_timeout(&self, hold: &str) -> String {
        format!("{}:{hold}:rwlock_timeout:1", self.as_tag())
    }

    /// Returns the key of the writers that wait for a read-write lock: a key of our own.
    pub(crate) fn waiting_writers(&self) -> String {
        format!("{}:writers", self.with_prefix("leasehold"))
    }

    /// Returns the key of the readers that have waited for a read-write lock for a long time: a key
    /// of our own.
    pub(crate) fn waiting_readers(&self) -> String {
        format!("{}:readers", self.with_prefix("leasehold"))
    }

    /// Returns the key of the holds that were ended by force: a key of our own, which Redisson
    /// never reads.
    pub(crate) fn forced_marker(&self) -> String {
        format!("{}:forced", self.with_prefix("leasehold"))
    }

    /// Returns the key of the clients that wait for a plain lock, with the numbers by which a
    /// release notifies them: a key of our own.
    pub(crate) fn waiting_clients(&self) -> String {
        format!("{}:asking", self.with_prefix("leasehold"))
    }

    /// Returns the key with the longest lease that a `RedLock` may give the lock: a key of our own.
    pub(crate) fn longest_lease(&self) -> String {
        format!("{}:longest", self.with_prefix("leasehold"))
    }

    /// Returns the channel on which a semaphore publishes its free permits (Redisson's channel).
    pub(crate) fn semaphore_channel(&self) -> String {
        self.with_prefix("redisson_sc")
    }

    /// Returns the channel on which a latch publishes that it is set or open. Redisson's channel
    /// always has braces around the name, so in a cluster a latch's name must not contain a brace.
    pub(crate) fn latch_channel(&self) -> String {
        format!("redisson_countdownlatch__channel__{{{}}}", self.name)
    }

    /// Returns the key of the leases of permits (Redisson's `suffixName`).
    pub(crate) fn timeout_key(&self) -> String {
        format!("{}:timeout", self.as_tag())
    }

    /// Returns the key of the reply to the request `id`: a key of our own.
    pub(crate) fn idempotency_key(&self, id: &str) -> String {
        format!("{}:did:{id}", self.with_prefix("leasehold"))
    }

    /// Returns the key with the marker of the latest request that released permits: a key of our
    /// own.
    pub(crate) fn released_marker(&self) -> String {
        format!("{}:released", self.with_prefix("leasehold"))
    }

    /// Returns the key of the time at which the latch was last opened: a key of our own.
    pub(crate) fn opened_marker(&self) -> String {
        format!("{}:opened", self.with_prefix("leasehold"))
    }

    /// Returns the keys and channels of everything with this name, as ACL rules for a user that may
    /// access nothing else. `docs/wire-format.md` has the same rules.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) fn access_rules(&self) -> String {
        // This is the limit of `Shown`, too. The rules contain the name six times, and are part of
        // an error's message.
        const LONGEST: usize = 120;
        let shown = if self.name.len() > LONGEST {
            "NAME"
        } else {
            &self.name
        };
        let name = as_pattern(shown);
        let tag = match shown.contains('{') {
            true => name.clone(),
            false => format!("{{{name}}}"),
        };
        // The channels have no colon before the tag, because a latch's channel has none. They end
        // with `*`, because each waiter of a fair lock has its own channel. The second pattern is
        // for the observers of an election.
        format!(
            "~{name} ~redisson_*:{tag}* ~{tag}:* ~leasehold:{tag}:* &redisson_*{tag}* \
             &leasehold:{tag}:*"
        )
    }

    /// Returns Redisson's `prefixName`: the name becomes the hash tag, unless it already has a
    /// brace.
    fn with_prefix(&self, prefix: &str) -> String {
        format!("{prefix}:{}", self.as_tag())
    }

    pub(crate) fn as_tag(&self) -> String {
        if self.name.contains('{') {
            self.name.to_string()
        } else {
            format!("{{{}}}", self.name)
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.name).fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// The kind of an additional key of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExtraKey {
    /// The queue of a fair lock.
    Queue,
    /// The leases of permits.
    Leases,
    /// The time at which a latch was last opened.
    Opening,
    /// Any key that does not tell whether the name is in use.
    Other,
}

/// Returns the name that belongs to a tag. `{{x}}` stays as it is: a name that already has a brace
/// gets no further braces.
fn name_of(tag: &str) -> &str {
    let inner = tag.strip_prefix('{').and_then(|tag| tag.strip_suffix('}'));
    inner.filter(|name| !name.contains('{')).unwrap_or(tag)
}

/// Returns a pattern that matches this string. The server does not accept a space in a pattern, so
/// `?` takes the place of a space.
pub(crate) fn as_pattern(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        match letter {
            '*' | '?' | '[' | ']' | '^' | '\\' => pattern.extend(['\\', letter]),
            _ if letter.is_whitespace() || letter.is_control() => {
                // One `?` for each byte: for the server, a character of several bytes is several
                // characters.
                pattern.extend(std::iter::repeat_n('?', letter.len_utf8()));
            }
            _ => pattern.push(letter),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_hash_tags_names_without_a_brace() {
        // Redisson only checks for a `{`. However strange its result is, ours must be the same, or
        // the two libraries would not wake each other's waiters.
        let channel = |name| Key::parse(name).unwrap().lock_channel();
        assert_eq!(channel("plain"), "redisson_lock__channel:{plain}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(channel("{"), "redisson_lock__channel:{");
    }

    #[test]
    fn keys_beside_a_name_lead_back_to_it() {
        for name in ["orders", "a{b}c", "a}b"] {
            let key = Key::parse(name).unwrap();
            for (extra, text) in [
                (ExtraKey::Queue, key.fair_queue()),
                (ExtraKey::Leases, key.timeout_key()),
                (ExtraKey::Opening, key.opened_marker()),
            ] {
                assert_eq!(Key::parse_extra(&text), Some((extra, name)), "{text}");
            }
            let other = |text: &str| Key::parse_extra(text).map(|(extra, _)| extra);
            for text in [
                key.fair_timeouts(),
                key.fair_waiters(),
                key.token_counter(),
                key.read_timeout("c:1"),
                key.waiting_writers(),
                key.waiting_readers(),
                key.forced_marker(),
                key.longest_lease(),
                key.idempotency_key("c:1"),
                key.released_marker(),
            ] {
                assert_eq!(other(&text), Some(ExtraKey::Other), "{text}");
            }
            assert_eq!(Key::parse_extra(name), None);
        }
        assert_eq!(Key::parse_extra("job:timeout"), None);
    }

    #[test]
    fn prefixed_names_are_compared_as_on_the_server() {
        let key = |prefix, name| Key::prefixed(prefix, name).unwrap();
        let one = key("app:", "orders");
        assert_eq!((one.as_str(), one.given()), ("app:orders", "orders"));
        assert_eq!(one, key("app", ":orders"));
        assert_eq!(one.lock_channel(), "redisson_lock__channel:{app:orders}");
        assert_eq!(one.fields("f").given(), "orders");
        assert!(Key::prefixed("app:", "").is_err());
        assert!(Key::prefixed("app:", &"x".repeat(Key::MAX_BYTES)).is_err());
    }

    #[test]
    fn access_rules_match_docs_and_unusual_names() {
        let rules = |name| Key::parse(name).unwrap().access_rules();
        let page = include_str!("../../../docs/wire-format.md");
        for rule in rules("orders").split(' ') {
            // Replace the tag first, because the name is part of it.
            let said = rule
                .replace("{orders}", "<tag>")
                .replace("orders", "<name>");
            assert!(page.contains(&format!("`{said}`")), "{said}");
        }
        assert!(rules("a{b}c").contains("~redisson_*:a{b}c* ~a{b}c:*"));
        assert!(rules("a[1]* b").contains(r"~a\[1\]\*?b ~redisson_*:{a\[1\]\*?b}*"));
        assert!(rules(&"x".repeat(200)).contains("~NAME ~redisson_*:{NAME}*"));
    }

    #[test]
    fn empty_and_oversized_names_are_refused() {
        assert_eq!(Key::parse("").unwrap_err().kind(), ErrorKind::Misuse);
        let error = Key::parse(&"x".repeat(Key::MAX_BYTES + 1)).unwrap_err();
        assert!(error.to_string().len() < 400, "{error}");
        assert!(Key::parse(&"x".repeat(Key::MAX_BYTES)).is_ok());
    }

    #[test]
    fn no_name_is_equal_to_a_part() {
        let key = |name: &str| Key::parse(name).unwrap();
        // A process finds its record for a lock by the key. If the key of a part were equal to the
        // key of a name, the waiters of two locks would share one queue, and an owner of one lock
        // would count as the owner of both.
        let x = key("x");
        let parts = [
            x.fields("a b"),
            x.fields("a"),
            x.members(vec![("a".into(), key("b"))]),
            x.members(vec![("a b".into(), key("c"))]),
            Key::joined(&[&x]),
            Key::joined(&[&x, &key("a")]),
            Key::joined(&[&key("x + a")]),
        ];
        for (n, part) in parts.iter().enumerate() {
            // Names that a user might choose, and that look like the string form of a part.
            for name in ["x", "x\0a", "x\0a b", "xa", "x a", "x + a", part.as_str()] {
                assert_ne!(*part, key(name), "{name:?}");
            }
            assert!(parts[n + 1..].iter().all(|other| other != part));
        }
    }

    #[test]
    fn displayed_name_escapes_control_characters() {
        let key = Key::parse("a\r\nb\u{1b}[2J\0").unwrap();
        assert_eq!(key.to_string(), "a\\r\\nb\\u{1b}[2J\\0");
    }
}
