//! The blocking facade has the same methods as the async handles and guards: the two surfaces are
//! compared method by method, as their sources declare them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::sources;

/// The names of the public methods, by type.
type Surface = BTreeMap<String, BTreeSet<String>>;

/// Methods that only one side has, and the reason.
const ASYNC_ONLY: [(&str, &str, &str); 14] = [
    (
        "Client",
        "builder",
        "`ClientBuilder::default()`, and `connect_with`",
    ),
    (
        "LockGuard",
        "lost",
        "`lost_within`: a thread can't wait and be told to stop",
    ),
    ("LockGuard", "stalled", "`stalled_within`"),
    ("ExpirablePermit", "stalled", "`stalled_within`"),
    ("LockGuard", "protect", "a thread can't be cancelled"),
    (
        "Lock",
        "local_hand_over",
        "each thread is an owner, and what an owner holds is not handed over",
    ),
    ("RwLock", "local_hand_over", "as of a lock"),
    ("Listing", "next", "an iterator's method"),
    ("Watch", "next", "an iterator's method"),
    ("WatchAll", "next", "an iterator's method"),
    ("Election", "lead_until", "a thread can't be cancelled"),
    ("Election", "restart_delay", "a setting of `lead_until`"),
    ("ExpirablePermit", "lost", "`lost_within`"),
    ("ExpirablePermit", "protect", "a thread can't be cancelled"),
];
const BLOCKING_ONLY: [(&str, &str, &str); 20] = [
    (
        "Client",
        "as_async",
        "the way to what only async code can do",
    ),
    (
        "Client",
        "connect_with",
        "`ClientBuilder::connect` is async",
    ),
    (
        "Client",
        "connect_in_background_with",
        "the client's thread has to be there first",
    ),
    ("Client", "of", "`Embedded::client` needs a runtime"),
    (
        "Client",
        "embedded_with",
        "`ClientBuilder::embedded` needs a runtime",
    ),
    (
        "Lock",
        "is_held_by_current_thread",
        "tasks have no identity",
    ),
    (
        "AnyLock",
        "is_held_by_current_thread",
        "as of a lock of one kind",
    ),
    ("LockGuard", "as_async", "as of the client"),
    ("LockGuard", "lost_within", "for `lost`"),
    ("LockGuard", "stalled_within", "for `stalled`"),
    ("ExpirablePermit", "stalled_within", "for `stalled`"),
    ("ExpirablePermit", "as_async", "as of the client"),
    ("Term", "as_async", "as of the client"),
    ("Term", "is_held", "an async term dereferences to its guard"),
    ("Term", "loss", "as `is_held`"),
    ("Term", "valid_until", "as `is_held`"),
    ("Term", "lost_within", "for `lost`"),
    ("Turn", "as_async", "as of the client"),
    ("Turn", "is_held", "an async turn dereferences to its guard"),
    ("ExpirablePermit", "lost_within", "for `lost`"),
];

/// The methods that a call of a macro declares, by the macro's name.
type Macros = BTreeMap<String, Vec<String>>;

/// Returns the type under which methods are compared. Locks and guards of all kinds count as one,
/// because the facade has one type of each.
fn merged(name: &str) -> &str {
    match name {
        "FairLock" | "FencedLock" | "GroupLock" | "MultiLock" | "RedLock" => "Lock",
        "FencedGuard" | "ReadGuard" | "WriteGuard" => "LockGuard",
        name => name,
    }
}

/// Returns the type of an `impl` block that belongs to no trait.
fn implemented(header: &str) -> Option<String> {
    let mut rest = header.strip_prefix("impl")?;
    if let Some(generics) = rest.strip_prefix('<') {
        let mut depth = 1;
        let end = generics.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        })?;
        rest = &generics[end + 1..];
    }
    if rest.contains(" for ") {
        return None;
    }
    let path = rest.trim().split(['<', ' ', '{']).next()?;
    Some(merged(path.rsplit("::").next()?).to_owned())
}

/// Returns the public method that a line of an `impl` block or of a macro declares.
fn declared(line: &str) -> Option<String> {
    let line = line.trim_start();
    let name = |text: &str| -> String {
        let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
        text.chars().take_while(is_part).collect()
    };
    for start in ["pub fn ", "pub async fn ", "pub const fn "] {
        if let Some(rest) = line.strip_prefix(start) {
            return Some(name(rest)).filter(|name| !name.is_empty());
        }
    }
    // This is a line of `waits!`, `calls!`, `reads!` or `setters!`.
    let (_, rest) = line.strip_prefix('"')?.split_once("\" ")?;
    rest.contains('(').then(|| name(rest))
}

fn macros(text: &str, found: &mut Macros) {
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("macro_rules! ") {
            let body = lines.by_ref().take_while(|line| *line != "}");
            let name = rest.trim_end_matches(" {").to_owned();
            found.insert(name, body.filter_map(declared).collect());
        }
    }
}

fn read(text: &str, macros: &Macros, surface: &mut Surface) {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with("impl") {
            continue;
        }
        let mut header = line.to_owned();
        while !header.contains('{') {
            header += lines.next().unwrap();
        }
        let Some(name) = implemented(&header) else {
            continue;
        };
        let methods = surface.entry(name).or_default();
        for line in lines.by_ref().take_while(|line| *line != "}") {
            methods.extend(declared(line));
            let called = line.trim_start().split_once("! {");
            let expanded = called.and_then(|(called, _)| macros.get(called));
            methods.extend(expanded.into_iter().flatten().cloned());
        }
    }
}

fn surface(parts: &[&str]) -> Surface {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    for part in parts {
        let path = root.join(part);
        match path.is_dir() {
            true => paths.extend(sources::rust_files(&path)),
            false => paths.push(path),
        }
    }
    let texts = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap());
    let texts: Vec<_> = texts.collect();
    let (mut surface, mut known) = (Surface::new(), Macros::new());
    texts.iter().for_each(|text| macros(text, &mut known));
    for text in &texts {
        read(text, &known, &mut surface);
    }
    surface
}

/// Returns the methods that only `one` has, except for known ones that have a reason.
fn beyond(one: &Surface, other: &Surface, known: &[(&str, &str, &str)]) -> Vec<String> {
    let mut differences = BTreeSet::new();
    for (name, methods) in one {
        let Some(others) = other.get(name) else {
            continue;
        };
        let more = methods.difference(others);
        differences.extend(more.map(|method| (name.as_str(), method.as_str())));
    }
    let known: BTreeSet<_> = known
        .iter()
        .map(|(name, method, _)| (*name, *method))
        .collect();
    let news = differences.difference(&known);
    let stale = known.difference(&differences);
    news.map(|(name, method)| format!("{name}::{method} is there on one side alone"))
        .chain(stale.map(|(name, method)| format!("{name}::{method} is there on both sides now")))
        .collect()
}

#[test]
fn the_two_surfaces_are_the_same() {
    let twins = surface(&["client.rs", "operate", "primitives", "recipes"]);
    let blocking = surface(&["blocking"]);
    let compared: Vec<_> = blocking
        .keys()
        .filter(|name| twins.contains_key(*name))
        .collect();
    assert!(compared.len() >= 10, "{compared:?}");
    let mut wrong = beyond(&twins, &blocking, &ASYNC_ONLY);
    wrong.extend(beyond(&blocking, &twins, &BLOCKING_ONLY));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn surface_of(text: &str) -> Surface {
    let (mut surface, mut known) = (Surface::new(), Macros::new());
    macros(text, &mut known);
    read(text, &known, &mut surface);
    surface
}

#[test]
fn a_method_of_one_side_is_seen() {
    let one = surface_of(
        "macro_rules! setters {\n    pub fn lease(self)\n}\n\
         impl<K: Kind<A<B>>> crate::Lock<K> {\n    setters! {}\n    pub async fn run(&self) {\n}\n",
    );
    let other =
        surface_of("impl Lock {\n    waits! { Lock:\n        \"Waits\" wait() -> ();\n    }\n}\n");
    assert_eq!(beyond(&one, &other, &[]).len(), 2, "{one:?}");
    assert_eq!(beyond(&other, &one, &[]).len(), 1, "{other:?}");
    let known = [("Lock", "lease", "why"), ("Lock", "run", "why")];
    assert!(beyond(&one, &other, &known).is_empty());
    assert_eq!(beyond(&one, &one, &known).len(), 2, "they are stale");
}
