//! Keys with their values and expiry. A step's twin works on them: it does in Rust what the step's
//! script does on a server. The methods have the names and the rules of the server's own commands.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use crate::backend::value::Refusal;
use crate::pattern;

/// The keys of a server at one instant.
#[derive(Default)]
pub(crate) struct Keyspace {
    pub(super) entries: HashMap<Vec<u8>, Stored>,
    pub(super) published: Vec<PublishedMessage>,
    pub(super) now_ms: u64,
    steps_since_sweep: u32,
    audience: Option<Audience>,
    /// The fields that were removed from hashes, recorded if a test checks whether one of them is
    /// written again.
    pub(super) removed: Option<RemovedFields>,
}

/// Fields that were removed from hashes, each with its hash's key.
#[derive(Default)]
pub(super) struct RemovedFields {
    fields: HashSet<(Vec<u8>, Vec<u8>)>,
    /// The removed fields that were written again.
    pub(super) rewritten: Vec<(Vec<u8>, Vec<u8>)>,
}

impl RemovedFields {
    fn note_write(&mut self, key: &[u8], field: &[u8]) {
        let field = (key.to_vec(), field.to_vec());
        if self.fields.contains(&field) {
            self.rewritten.push(field);
        }
    }
}

/// Counts the connections that listen to a channel.
pub(crate) type Audience = Box<dyn Fn(&str) -> i64 + Send>;

/// A message that a step has published: the channel and the payload.
pub(crate) type PublishedMessage = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug)]
pub(super) struct Stored {
    content: Content,
    expires_at_ms: Option<u64>,
}

#[derive(Clone, Debug)]
enum Content {
    Hash(Fields),
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    Sorted(Sorted),
}

/// A hash.
type Fields = BTreeMap<Vec<u8>, Vec<u8>>;
/// A field with its value.
type HashField = (Vec<u8>, Vec<u8>);
/// A member with its score. Every score here is a time in ms, so it is an integer.
type ScoredMember = (Vec<u8>, i64);

/// A sorted set, indexed by member and ordered by score and then member.
#[derive(Clone, Debug, Default)]
struct Sorted {
    scores: HashMap<Vec<u8>, i64>,
    order: BTreeSet<(i64, Vec<u8>)>,
}

impl Sorted {
    fn add(&mut self, member: &[u8], score: i64) -> bool {
        let old = self.scores.insert(member.to_vec(), score);
        if let Some(old) = old {
            // Without this, the member would appear a second time, at its old score.
            self.order.remove(&(old, member.to_vec()));
        }
        self.order.insert((score, member.to_vec()));
        old.is_none()
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        self.scores
            .remove(member)
            .is_some_and(|score| self.order.remove(&(score, member.to_vec())))
    }
}

/// Defines two methods for one type of content. One finds the content, the other also creates it if
/// it is missing.
macro_rules! collection {
    ($name:ident, $make:ident, $kind:ident, $type:ty) => {
        fn $name(&mut self, key: &[u8]) -> Result<Option<&mut $type>, Refusal> {
            match self.live(key).map(|stored| &mut stored.content) {
                None => Ok(None),
                Some(Content::$kind(content)) => Ok(Some(content)),
                Some(_) => Err(Refusal::wrong_type()),
            }
        }

        fn $make(&mut self, key: &[u8]) -> Result<&mut $type, Refusal> {
            if self.live(key).is_none() {
                self.insert(key, Content::$kind(<$type>::default()));
            }
            match self.entries.get_mut(key).map(|stored| &mut stored.content) {
                Some(Content::$kind(content)) => Ok(content),
                _ => Err(Refusal::wrong_type()),
            }
        }
    };
}

impl Keyspace {
    collection!(hash, hash_to_write, Hash, Fields);
    collection!(list, list_to_write, List, VecDeque<Vec<u8>>);
    collection!(sorted, sorted_to_write, Sorted, Sorted);

    fn live(&mut self, key: &[u8]) -> Option<&mut Stored> {
        let now_ms = self.now_ms;
        // As on a server, a key still exists in the millisecond in which it expires.
        let over = |stored: &Stored| stored.expires_at_ms.is_some_and(|at| now_ms > at);
        if self.entries.get(key).is_some_and(over) {
            self.entries.remove(key);
        }
        self.entries.get_mut(key)
    }

    fn insert(&mut self, key: &[u8], content: Content) {
        let stored = Stored {
            content,
            expires_at_ms: None,
        };
        self.entries.insert(key.to_vec(), stored);
    }

    pub(crate) fn with_audience(audience: Audience) -> Self {
        Self {
            audience: Some(audience),
            ..Self::default()
        }
    }

    /// Returns the server's time in ms (`TIME`).
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        self.live(key).is_some()
    }

    pub(crate) fn del(&mut self, key: &[u8]) -> bool {
        self.live(key).is_some() && self.entries.remove(key).is_some()
    }

    pub(crate) fn pexpire(&mut self, key: &[u8], ms: u64) {
        let at = self.now_ms.saturating_add(ms);
        if let Some(stored) = self.live(key) {
            stored.expires_at_ms = Some(at);
        }
    }

    /// Returns the milliseconds until the key expires: -1 if it has no expiry, -2 if there is no
    /// such key.
    pub(crate) fn pttl(&mut self, key: &[u8]) -> i64 {
        let now_ms = self.now_ms;
        match self.live(key) {
            None => -2,
            Some(stored) => stored.expires_at_ms.map_or(-1, |at| {
                i64::try_from(at.saturating_sub(now_ms)).unwrap_or(i64::MAX)
            }),
        }
    }

    /// Returns the key's type, as `TYPE` names it.
    pub(crate) fn kind(&mut self, key: &[u8]) -> &'static str {
        match self.live(key).map(|stored| &stored.content) {
            None => "none",
            Some(Content::Hash(_)) => "hash",
            Some(Content::Text(_)) => "string",
            Some(Content::List(_)) => "list",
            Some(Content::Sorted(_)) => "zset",
        }
    }

    pub(crate) fn publish(&mut self, channel: &[u8], message: &[u8]) {
        // The message is delivered after the step: a client that receives it sends a request at
        // once, and that request must find all changes of the step.
        self.published.push((channel.to_vec(), message.to_vec()));
    }

    /// Returns the keys that match a pattern, sorted.
    pub(crate) fn scan(&mut self, pattern: &[u8]) -> Vec<Vec<u8>> {
        self.drop_expired();
        let keys = self.entries.keys();
        let mut keys: Vec<_> = keys
            .filter(|key| pattern::matches(pattern, key))
            .cloned()
            .collect();
        keys.sort();
        keys
    }

    /// Returns the number of keys (`DBSIZE`).
    pub(crate) fn len(&mut self) -> usize {
        self.drop_expired();
        self.entries.len()
    }

    /// Returns how many connections listen to the channel.
    pub(crate) fn listeners(&self, channel: &[u8]) -> i64 {
        let Some(count) = &self.audience else {
            return 0;
        };
        match std::str::from_utf8(channel) {
            Ok(channel) => count(channel),
            Err(_) => count(&String::from_utf8_lossy(channel)),
        }
    }

    /// Removes expired keys from time to time. An expired key is also removed when a step accesses
    /// it.
    pub(super) fn sweep(&mut self) {
        const STEPS: u32 = 4096;
        self.steps_since_sweep += 1;
        // On average this visits at most one key per step, however many keys there are.
        if self.steps_since_sweep >= STEPS.max(self.entries.len() as u32) {
            self.steps_since_sweep = 0;
            self.drop_expired();
        }
    }

    pub(super) fn drop_expired(&mut self) {
        let now_ms = self.now_ms;
        self.entries
            .retain(|_, stored| stored.expires_at_ms.is_none_or(|at| now_ms <= at));
    }
}

/// Hashes.
impl Keyspace {
    pub(crate) fn hlen(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        Ok(self.hash(key)?.map_or(0, |fields| fields.len()))
    }

    pub(crate) fn hexists(&mut self, key: &[u8], field: &[u8]) -> Result<bool, Refusal> {
        Ok(self
            .hash(key)?
            .is_some_and(|fields| fields.contains_key(field)))
    }

    pub(crate) fn hget(&mut self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self
            .hash(key)?
            .and_then(|fields| fields.get(field).cloned()))
    }

    pub(crate) fn hgetall(&mut self, key: &[u8]) -> Result<Vec<HashField>, Refusal> {
        Ok(self.hash(key)?.map_or_else(Vec::new, |fields| {
            fields
                .iter()
                .map(|(field, value)| (field.clone(), value.clone()))
                .collect()
        }))
    }

    pub(crate) fn hset(&mut self, key: &[u8], field: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let before = self
            .hash_to_write(key)?
            .insert(field.to_vec(), value.to_vec());
        if let (None, Some(removed)) = (before, &mut self.removed) {
            removed.note_write(key, field);
        }
        Ok(())
    }

    /// Removes a field. The hash is removed with its last field.
    pub(crate) fn hdel(&mut self, key: &[u8], field: &[u8]) -> Result<bool, Refusal> {
        let Some(fields) = self.hash(key)? else {
            return Ok(false);
        };
        let removed = fields.remove(field).is_some();
        if fields.is_empty() {
            self.entries.remove(key);
        }
        if let (true, Some(noted)) = (removed, &mut self.removed) {
            noted.fields.insert((key.to_vec(), field.to_vec()));
        }
        Ok(removed)
    }
}

/// Strings and numbers.
impl Keyspace {
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        match self.live(key).map(|stored| &stored.content) {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Refusal::wrong_type()),
        }
    }

    /// Sets a string without expiry, whatever the key held before.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        self.insert(key, Content::Text(value.to_vec()));
    }

    /// Adds to a number. The key keeps its expiry.
    pub(crate) fn incr_by(&mut self, key: &[u8], by: i64) -> Result<i64, Refusal> {
        let old = match self.get(key)? {
            None => 0,
            Some(text) => integer(&text)?,
        };
        let new = old
            .checked_add(by)
            .ok_or_else(|| Refusal("ERR increment or decrement would overflow".into()))?;
        let text = new.to_string().into_bytes();
        match self.live(key) {
            Some(stored) => stored.content = Content::Text(text),
            None => self.insert(key, Content::Text(text)),
        }
        Ok(new)
    }
}

/// Lists.
impl Keyspace {
    pub(crate) fn llen(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        Ok(self.list(key)?.map_or(0, |list| list.len()))
    }

    /// Returns all items, from head to tail.
    pub(crate) fn lrange(&mut self, key: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        Ok(self
            .list(key)?
            .map_or_else(Vec::new, |list| list.iter().cloned().collect()))
    }

    /// Returns the head.
    pub(crate) fn lfirst(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.list(key)?.and_then(|list| list.front().cloned()))
    }

    /// Returns the tail.
    pub(crate) fn llast(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.list(key)?.and_then(|list| list.back().cloned()))
    }

    pub(crate) fn rpush(&mut self, key: &[u8], item: &[u8]) -> Result<(), Refusal> {
        self.list_to_write(key)?.push_back(item.to_vec());
        Ok(())
    }

    pub(crate) fn lpush(&mut self, key: &[u8], item: &[u8]) -> Result<(), Refusal> {
        self.list_to_write(key)?.push_front(item.to_vec());
        Ok(())
    }

    pub(crate) fn lpop(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(list) = self.list(key)? else {
            return Ok(None);
        };
        let head = list.pop_front();
        // A server has no empty lists, so `exists` must not find one here.
        if list.is_empty() {
            self.entries.remove(key);
        }
        Ok(head)
    }

    /// Removes the first `item`.
    pub(crate) fn lrem_first(&mut self, key: &[u8], item: &[u8]) {
        let Ok(Some(list)) = self.list(key) else {
            return;
        };
        if let Some(at) = list.iter().position(|other| other == item) {
            list.remove(at);
        }
        if list.is_empty() {
            self.entries.remove(key);
        }
    }

    /// Removes every `item`. Returns how many there were.
    pub(crate) fn lrem(&mut self, key: &[u8], item: &[u8]) -> Result<usize, Refusal> {
        let Some(list) = self.list(key)? else {
            return Ok(0);
        };
        let before = list.len();
        list.retain(|other| other != item);
        let removed = before - list.len();
        if list.is_empty() {
            self.entries.remove(key);
        }
        Ok(removed)
    }
}

/// Sorted sets.
impl Keyspace {
    pub(crate) fn zcard(&mut self, key: &[u8]) -> Result<usize, Refusal> {
        Ok(self.sorted(key)?.map_or(0, |set| set.order.len()))
    }

    pub(crate) fn zscore(&mut self, key: &[u8], member: &[u8]) -> Result<Option<i64>, Refusal> {
        Ok(self
            .sorted(key)?
            .and_then(|set| set.scores.get(member).copied()))
    }

    /// Adds a member. Returns whether it was new.
    pub(crate) fn zadd(&mut self, key: &[u8], member: &[u8], score: i64) -> Result<bool, Refusal> {
        Ok(self.sorted_to_write(key)?.add(member, score))
    }

    pub(crate) fn zrem(&mut self, key: &[u8], member: &[u8]) -> Result<bool, Refusal> {
        let Some(set) = self.sorted(key)? else {
            return Ok(false);
        };
        let removed = set.remove(member);
        if set.order.is_empty() {
            self.entries.remove(key);
        }
        Ok(removed)
    }

    /// Returns all members, the lowest score first.
    pub(crate) fn zrange(&mut self, key: &[u8]) -> Result<Vec<ScoredMember>, Refusal> {
        Ok(self.sorted(key)?.map_or_else(Vec::new, |set| {
            set.order
                .iter()
                .map(|(score, member)| (member.clone(), *score))
                .collect()
        }))
    }

    /// Returns up to `limit` members with a score of at most `most`, the lowest first.
    pub(crate) fn zrange_by_score(
        &mut self,
        key: &[u8],
        most: i64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        Ok(self.sorted(key)?.map_or_else(Vec::new, |set| {
            set.order
                .iter()
                .take_while(|(score, _)| *score <= most)
                .take(limit)
                .map(|(_, member)| member.clone())
                .collect()
        }))
    }
}

/// Reads a number as the server does.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Refusal> {
    std::str::from_utf8(text)
        .ok()
        // Rust reads `+5` as a number, but the server does not.
        .filter(|text| !text.starts_with('+'))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal("ERR value is not an integer or out of range".into()))
}

#[cfg(test)]
impl Keyspace {
    pub(crate) fn set_now(&mut self, ms: u64) {
        self.now_ms = ms;
    }

    /// Removes every key that has an expiry.
    pub(crate) fn expire_all(&mut self) {
        self.entries
            .retain(|_, stored| stored.expires_at_ms.is_none());
    }

    /// Returns each key's type, content and remaining time, to compare them with those on a server.
    pub(crate) fn dump(&mut self) -> BTreeMap<String, (&'static str, Vec<String>, i64)> {
        self.drop_expired();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.into_iter()
            .map(|key| {
                let content = match &self.entries[&key].content {
                    Content::Text(value) => vec![text(value)],
                    Content::List(items) => items.iter().map(|item| text(item)).collect(),
                    Content::Hash(fields) => fields
                        .iter()
                        .map(|(field, value)| format!("{} {}", text(field), text(value)))
                        .collect(),
                    Content::Sorted(set) => set
                        .order
                        .iter()
                        .map(|(score, member)| format!("{} {score}", text(member)))
                        .collect(),
                };
                let (kind, remaining) = (self.kind(&key), self.pttl(&key));
                (text(&key), (kind, content, remaining))
            })
            .collect()
    }
}
