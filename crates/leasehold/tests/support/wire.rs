//! The tables of `docs/wire-format.md`, and a check of a server against them.

use std::time::Duration;

use leasehold_testkit::{Heard, RedisServer, RedissonVersion, Reply};

pub(crate) const PAGE: &str = include_str!("../../../../docs/wire-format.md");

/// Returns the commands that a user needs according to the page, as rules.
pub(crate) fn allowed_commands() -> String {
    rules_behind("A user with restricted commands needs")
}

pub(crate) fn allowed_in_a_cluster() -> String {
    rules_behind("In a cluster, the user also needs")
}

/// Returns the commands that the user on the sentinels needs according to the page, as rules.
pub(crate) fn allowed_at_sentinels() -> String {
    rules_behind("The user at sentinels needs")
}

fn rules_behind(words: &str) -> String {
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) = page.split_once(words).unwrap();
    let rules = rest.split('`').nth(1).unwrap();
    rules.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lease that the word "lease" on the page means in a test. It is the default of both
/// libraries.
const LEASE: Duration = Duration::from_secs(30);

/// The library whose writes and messages a test checks against the page.
#[derive(Clone, Copy)]
pub(crate) enum Writer {
    Rust,
    Java(RedissonVersion),
}

/// One section of the page, for one name, checked against a server.
pub(crate) struct Wire<'a> {
    section: &'static str,
    server: &'a RedisServer,
    heard: Heard,
    keys: Vec<KeyRow>,
    messages: Vec<MessageRow>,
}

impl<'a> Wire<'a> {
    /// Begins to watch everything that happens on `server`.
    pub(crate) fn new(
        server: &'a RedisServer,
        section: &'static str,
        name: &str,
        writer: Writer,
    ) -> Self {
        let rows: Vec<_> = rows(section).filter(|row| writer.is_in(row)).collect();
        let filled = |row: &Vec<&str>| row.iter().map(|cell| fill(cell, name)).collect();
        let of = |cells| rows.iter().filter(move |row| row.len() == cells);
        Self {
            section,
            server,
            heard: server.listen(),
            keys: of(6).map(filled).map(KeyRow::new).collect(),
            messages: of(4).map(filled).map(MessageRow::new).collect(),
        }
    }

    /// Like [`new`](Self::new), but all rows of `other` may also occur.
    pub(crate) fn with(mut self, other: Wire<'_>) -> Self {
        let optional = |row: KeyRow| KeyRow {
            needed: false,
            ..row
        };
        self.keys.extend(other.keys.into_iter().map(optional));
        let optional = |row: MessageRow| MessageRow {
            needed: false,
            ..row
        };
        self.messages
            .extend(other.messages.into_iter().map(optional));
        self
    }

    /// Checks the keys that are on the server now, and everything that has happened since the last
    /// check, against the page.
    pub(crate) fn look(&mut self) {
        for key in self.server.keys() {
            for entry in entries(self.server, &key) {
                self.find(&entry);
            }
        }
        // The keys in which a client describes itself do not belong to a lock.
        let keys = self.heard.keys().into_iter();
        for key in keys.filter(|key| !key.starts_with("leasehold:client")) {
            let rows = self.keys.iter_mut();
            let rows: Vec<_> = rows.filter(|row| row.key.fits(key.as_bytes())).collect();
            assert!(!rows.is_empty(), "{}: no row for `{key}`", self.section);
            for row in rows.into_iter().filter(|row| row.is_fleeting()) {
                // No check is quick enough to see more of this key.
                row.seen = true;
            }
        }
        for (channel, text) in self.heard.messages() {
            let mut found = false;
            for row in &mut self.messages {
                if row.channel.fits(channel.as_bytes()) && row.text.fits(text.as_bytes()) {
                    (found, row.seen) = (true, true);
                }
            }
            let section = self.section;
            assert!(found, "{section}: no row for `{text}` on `{channel}`");
        }
    }

    fn find(&mut self, entry: &Entry) {
        let mut found = false;
        for row in self.keys.iter_mut().filter(|row| row.is(entry)) {
            (found, row.seen) = (true, true);
            row.longest_ms = row.longest_ms.max(entry.ttl_ms);
        }
        assert!(found, "{}: no row for {entry}", self.section);
    }

    /// Checks once more, and asserts that every row has been seen.
    pub(crate) fn finish(mut self) {
        self.look();
        let keys = self.keys.iter().filter(|row| row.needed && !row.seen);
        let messages = self.messages.iter().filter(|row| row.needed && !row.seen);
        let unseen: Vec<_> = keys
            .map(|row| &row.text)
            .chain(messages.map(|row| &row.row))
            .collect();
        assert!(
            unseen.is_empty(),
            "{}: nothing was there for {unseen:#?}",
            self.section
        );
        for row in self.keys.iter().filter(|row| !row.is_fleeting()) {
            if let Ends::Within(limit) = row.ends {
                let enough = row.longest_ms > ms(limit) / 2 || !row.needed;
                assert!(enough, "{}: ends much sooner: {}", self.section, row.text);
            }
        }
    }
}

/// Returns the sections that have such tables.
pub(crate) fn sections() -> Vec<&'static str> {
    let heads = PAGE.lines().filter_map(|line| line.strip_prefix("## "));
    heads.filter(|head| rows(head).count() > 0).collect()
}

/// Returns the rows of a section's tables that name a writer or a publisher.
fn rows(section: &str) -> impl Iterator<Item = Vec<&'static str>> + use<> {
    let start = format!("\n## {section}\n");
    let (_, rest) = PAGE.split_once(&start).expect("a section of the page");
    let body = rest.split("\n## ").next().expect("there is a first one");
    let mut is_wanted = false;
    let mut rows = Vec::new();
    for line in body.lines() {
        let cells = cells(line);
        match cells.last() {
            None => is_wanted = false,
            Some(&("written by" | "published by")) => is_wanted = true,
            Some(_) if is_wanted && !line.starts_with("|---") => rows.push(cells),
            Some(_) => {}
        }
    }
    rows.into_iter()
}

/// Returns the cells of a row of a table, and no cells for any other line.
pub(crate) fn cells(line: &str) -> Vec<&str> {
    match line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) {
        Some(inner) => inner
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect(),
        None => Vec::new(),
    }
}

/// Fills this name into a cell of the page.
pub(crate) fn fill(cell: &str, name: &str) -> String {
    let tag = match name.contains('{') {
        true => name.to_owned(),
        false => format!("{{{name}}}"),
    };
    cell.replace("<tag>", &tag).replace("<name>", name)
}

impl Writer {
    /// Returns whether the row's last cell names this writer.
    fn is_in(self, row: &[&str]) -> bool {
        let mut names = row.last().expect("not empty").split(", ");
        names.any(
            |name| match (self, &name.split(' ').collect::<Vec<_>>()[..]) {
                (Self::Rust, ["Rust"]) | (Self::Java(_), ["Java"]) => true,
                (Self::Java(version), ["Java", "from", first]) => number(version) >= numbers(first),
                (Self::Java(version), ["Java", "before", first]) => {
                    number(version) < numbers(first)
                }
                (_, ["Rust"] | ["Java", ..]) => false,
                _ => panic!("who is `{name}`?"),
            },
        )
    }
}

fn number(version: RedissonVersion) -> Vec<u32> {
    numbers(&version.to_string())
}

fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split('.');
    parts.map(|part| part.parse().expect("a number")).collect()
}

struct KeyRow {
    text: String,
    key: Pattern,
    kind: String,
    field: Pattern,
    value: Pattern,
    ends: Ends,
    needed: bool,
    seen: bool,
    longest_ms: i64,
}

impl KeyRow {
    fn new(cells: Vec<String>) -> Self {
        let text = cells.join(" | ");
        let [key, kind, field, value, ends, _]: [String; 6] = cells.try_into().expect("six cells");
        Self {
            text,
            key: Pattern::new(&key),
            kind,
            field: Pattern::new(&field),
            value: Pattern::new(&value),
            ends: Ends::new(&ends),
            needed: true,
            seen: false,
            longest_ms: 0,
        }
    }

    fn is(&self, entry: &Entry) -> bool {
        self.kind == entry.kind
            && self.ends.fits(entry.ttl_ms)
            && self.key.fits(entry.key.as_bytes())
            && self.field.fits(&entry.field)
            && self.value.fits(&entry.value)
    }

    fn is_fleeting(&self) -> bool {
        matches!(self.ends, Ends::AtOnce(_))
    }
}

struct MessageRow {
    row: String,
    channel: Pattern,
    text: Pattern,
    needed: bool,
    seen: bool,
}

impl MessageRow {
    fn new(cells: Vec<String>) -> Self {
        Self {
            row: cells.join(" | "),
            channel: Pattern::new(&cells[0]),
            text: Pattern::new(&cells[1]),
            needed: true,
            seen: false,
        }
    }
}

/// The expiry that a key may have.
enum Ends {
    Never,
    Within(Duration),
    AtOnce(Duration),
    AsSet,
}

impl Ends {
    fn new(cell: &str) -> Self {
        let words: Vec<_> = cell.split(' ').collect();
        match words[..] {
            ["never"] => Self::Never,
            ["lease"] => Self::Within(LEASE),
            ["lease", "+", count, "ms"] => {
                Self::Within(LEASE + Duration::from_millis(count.parse().expect("a number")))
            }
            ["as", "set"] => Self::AsSet,
            ["at", "once,", "else", count, unit] => Self::AtOnce(span(count, unit)),
            [count, unit] => Self::Within(span(count, unit)),
            _ => panic!("when is `{cell}`?"),
        }
    }

    fn fits(&self, ttl_ms: i64) -> bool {
        match self {
            Self::Never => ttl_ms == -1,
            Self::AsSet => ttl_ms >= 0,
            Self::Within(limit) | Self::AtOnce(limit) => (0..=ms(*limit)).contains(&ttl_ms),
        }
    }
}

fn span(count: &str, unit: &str) -> Duration {
    let seconds = match unit {
        "s" => 1,
        "h" => 3600,
        _ => panic!("what is the unit `{unit}`?"),
    };
    Duration::from_secs(count.parse::<u64>().expect("a number") * seconds)
}

fn ms(span: Duration) -> i64 {
    span.as_millis().try_into().expect("it is short")
}

/// A string that contains placeholders for ids and numbers.
pub(crate) struct Pattern(Vec<Part>);

enum Part {
    Text(String),
    Mark(String),
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        // A dash means an empty field.
        let mut rest = text.trim_matches('–');
        while let Some((before, marked)) = rest.split_once('<') {
            let (mark, behind) = marked.split_once('>').expect("a mark ends");
            parts.push(Part::Text(before.into()));
            parts.push(Part::Mark(mark.into()));
            rest = behind;
        }
        parts.push(Part::Text(rest.into()));
        Self(parts)
    }

    pub(crate) fn fits(&self, text: &[u8]) -> bool {
        let rest = self.0.iter().try_fold(text, |rest, part| match part {
            Part::Text(text) => rest.strip_prefix(text.as_bytes()),
            Part::Mark(mark) => behind(mark, rest),
        });
        rest.is_some_and(<[u8]>::is_empty)
    }
}

/// Returns the rest of `text` after the part that matches `mark`.
fn behind<'t>(mark: &str, text: &'t [u8]) -> Option<&'t [u8]> {
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let of = |length: usize, fits: &dyn Fn(&u8) -> bool| {
        let (head, rest) = text.split_at_checked(length)?;
        head.iter().all(fits).then_some(rest)
    };
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match mark {
        "uuid" => of(36, &|byte| is_hex(byte) || *byte == b'-'),
        "hex" => of(32, &is_hex),
        "id" => of(16, &|_| true),
        "value" => of(22, &|byte| {
            byte.is_ascii_alphanumeric() || b"+/".contains(byte)
        }),
        "label" => (text.len() <= 200 && !text.iter().any(u8::is_ascii_control)).then_some(&[]),
        "n" if text.starts_with(b"0") => None,
        "n" => (digits(text) > 0).then(|| &text[digits(text)..]),
        "int" => {
            let number = text.strip_prefix(b"-").unwrap_or(text);
            (digits(number) > 0).then(|| &number[digits(number)..])
        }
        "client" => matches!(digits(text), 15 | 16).then(|| &text[digits(text)..]),
        // The number has 13 digits until the year 2286.
        "ms" => (digits(text) == 13).then(|| &text[13..]),
        "us" => (digits(text) == 16).then(|| &text[16..]),
        _ => panic!("what is `<{mark}>`?"),
    }
}

/// One field or member of a key, or a complete string.
struct Entry {
    key: String,
    kind: String,
    ttl_ms: i64,
    field: Vec<u8>,
    value: Vec<u8>,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [field, value] = [&self.field, &self.value].map(|text| text.escape_ascii());
        let Self {
            key, kind, ttl_ms, ..
        } = self;
        write!(f, "`{key}`, {kind} [{field}] = {value}, {ttl_ms} ms left")
    }
}

/// Returns the entries of a key, and no entries if the key does not exist.
fn entries(server: &RedisServer, key: &str) -> Vec<Entry> {
    let ask = |command: &[&str]| server.command(command).expect("it runs");
    let ttl_ms = ask(&["PTTL", key]).as_int().expect("a number");
    let kind = ask(&["TYPE", key]).as_text().expect("a text").to_owned();
    let read: &[&str] = match &*kind {
        "hash" => &["HGETALL", key],
        "string" => &["GET", key],
        "list" => &["LRANGE", key, "0", "-1"],
        "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
        _ => return Vec::new(),
    };
    let entry = |field: &[u8], value: &[u8]| Entry {
        key: key.to_owned(),
        kind: kind.clone(),
        ttl_ms,
        field: field.to_vec(),
        value: value.to_vec(),
    };
    let items = match ask(read) {
        Reply::Array(items) => items.into_iter().map(bytes).collect(),
        Reply::Nil => Vec::new(),
        text => vec![bytes(text)],
    };
    match &*kind {
        "string" => items.iter().map(|text| entry(b"", text)).collect(),
        "list" => items.iter().map(|text| entry(text, b"")).collect(),
        _ => items
            .chunks(2)
            .map(|pair| entry(&pair[0], &pair[1]))
            .collect(),
    }
}

fn bytes(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Text(text) => text.into_bytes(),
        Reply::Bytes(bytes) => bytes,
        other => panic!("no text: {other:?}"),
    }
}
