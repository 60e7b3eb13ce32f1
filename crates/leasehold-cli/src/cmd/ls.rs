//! `leasehold ls`: lists the names on the server.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::inspect::{
    ClientInfo, Found, HoldInfo, LeftOut, Listed, Listing, NameInfo, PermitInfo, Ttl, Wants,
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::show::{json, text};
use super::until_signal;
use crate::cli::{KindOfName, Ls};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown, is_watched};
use crate::server::Server;

pub(crate) async fn ls(args: Ls, server: Server) -> Result<Exit, Failure> {
    until_signal(list(args, server)).await
}

async fn list(args: Ls, server: Server) -> Result<Exit, Failure> {
    let client = server.connect(None).await?;
    let mut names = client.list(&args.pattern);
    let mut progress = Progress::new();
    let (mut is_first, mut denied) = (true, false);
    // Number of names of other kinds, and of names that were not held for long enough.
    let (mut others, mut young) = (0, 0);
    while let Some(listed) = progress.until_next(&mut names).await {
        let listed = listed?;
        if args
            .kind
            .is_some_and(|kind| kind_of(&listed.info) != Some(kind))
        {
            others += 1;
            continue;
        }
        if args
            .older_than
            .is_some_and(|span| held_for(&listed.info) <= Some(span))
        {
            young += 1;
            continue;
        }
        if listed.info.clients_denied && !std::mem::replace(&mut denied, true) {
            progress.clear();
            output::note(
                "the server denies `leasehold:client*`, so holders are known by their ids alone",
            );
        }
        progress.clear();
        let line = match args.json {
            true => json::of(&listed.name, &listed.info, None),
            false => line_of(&listed),
        };
        if std::mem::take(&mut is_first) && !args.json {
            output::result(head()).await?;
        }
        if !output::more(line).await? {
            break;
        }
    }
    progress.clear();
    let left_out = names.left_out();
    if is_first && others + young == 0 && left_out.denied > 0 {
        return Err(all_denied(client.address(), left_out.denied));
    }
    if is_first && !args.json {
        let other_kinds = args.kind.filter(|_| others > 0).map(|_| {
            format!(
                "; {others} {} of other kinds",
                plural(others, "name is", "names are")
            )
        });
        let younger = args.older_than.filter(|_| young > 0).map(|span| {
            format!(
                "; {young} {} not known to be held for longer than {}",
                plural(young, "name is", "names are"),
                duration::shown(span)
            )
        });
        output::note(format_args!(
            "no name at {} matches `{}`{}{}{}; a free lock has no key",
            client.address(),
            Shown(&args.pattern),
            if args.kind.is_some() {
                " and the kind"
            } else {
                ""
            },
            other_kinds.unwrap_or_default(),
            younger.unwrap_or_default()
        ));
    }
    if let Some(said) = left_out_in_words(left_out) {
        output::note(said);
    }
    if let Some(name) = names.not_utf8().first() {
        output::note(by_hand(name));
    }
    Ok(Exit::Success)
}

/// Returns the failure of a listing in which this user may read none of the keys.
pub(super) fn all_denied(address: &str, keys: u64) -> Failure {
    let keys = format!("{keys} {}", plural(keys, "key", "keys"));
    Failure::new(
        Exit::Denied,
        format!(
            "nothing can be listed: your user is not allowed to read the {keys} at {address} that may \
             be names; `leasehold show NAME` says which ACL rule allows NAME"
        ),
    )
}

/// Returns one line about the names that a listing leaves out.
fn left_out_in_words(left_out: LeftOut) -> Option<String> {
    let counted = [
        (
            left_out.denied,
            "key that your user is not allowed to read",
            "keys that your user is not allowed to read",
        ),
        (
            left_out.too_long,
            "name longer than 1000 bytes",
            "names longer than 1000 bytes",
        ),
        (
            left_out.not_utf8,
            "name that is not UTF-8",
            "names that are not UTF-8",
        ),
    ];
    let counted = counted.into_iter().filter(|(count, ..)| *count > 0);
    let counted = counted.map(|(count, one, many)| format!("{count} {}", plural(count, one, many)));
    let counted: Vec<_> = counted.collect();
    (!counted.is_empty()).then(|| format!("left out: {}", counted.join(", ")))
}

/// Returns commands that show and free a name that is not UTF-8, because leasehold itself accepts
/// only UTF-8.
pub(super) fn by_hand(name: &[u8]) -> String {
    // The name is quoted for redis-cli, and this is inside the quotes of a shell.
    let mut quoted = String::new();
    for byte in name {
        // Writing to a string can't fail.
        let _ = match byte {
            b'"' | b'\\' | b'\'' | 0..32 | 127.. => write!(quoted, "\\x{byte:02x}"),
            plain => write!(quoted, "{}", char::from(*plain)),
        };
    }
    format!(
        "look at it with: printf '%s\\n' 'HGETALL \"{quoted}\"' | redis-cli; to free it, use DEL \
         instead of HGETALL; this wakes no waiter"
    )
}

fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

pub(super) fn kind_of(info: &NameInfo) -> Option<KindOfName> {
    match info.found {
        // If `Nothing` is listed, no client holds the lock, but a waiter is in its queue.
        Found::Lock(_) | Found::Nothing => Some(KindOfName::Lock),
        Found::ReadWrite { .. } => Some(KindOfName::Rw),
        Found::Group(_) => Some(KindOfName::Group),
        Found::Leases { .. } => Some(KindOfName::Permits),
        Found::Count(_) => Some(KindOfName::Count),
        Found::Latch { .. } => Some(KindOfName::Latch),
        _ => None,
    }
}

fn head() -> String {
    row("NAME", "KIND", "TTL", "WAIT", "HELD BY")
}

fn row(name: &str, kind: &str, ttl: &str, waiting: &str, held: &str) -> String {
    format!("{name:<32}  {kind:<8}  {ttl:>8}  {waiting:>5}  {held}")
}

/// Returns the kind in one word. A lock with waiters in its queue is a fair lock.
pub(super) fn kind_word(info: &NameInfo) -> &'static str {
    let in_line = |info: &NameInfo| info.waiting.iter().any(|one| one.wants == Wants::Lock);
    match kind_of(info) {
        Some(KindOfName::Lock) if in_line(info) => "fair",
        Some(KindOfName::Lock) => "lock",
        Some(KindOfName::Rw) => "rw",
        Some(KindOfName::Group) => "group",
        Some(KindOfName::Permits) => "permits",
        Some(KindOfName::Count) => "count",
        Some(KindOfName::Latch) => "latch",
        None => "?",
    }
}

fn line_of(listed: &Listed) -> String {
    let info = &listed.info;
    let name = Shown(&listed.name).to_string();
    let (kind, ttl) = (kind_word(info), text::short_ttl(left(info)));
    let since = held_for(info).map_or_else(String::new, |span| {
        format!(
            ", for {}",
            duration::shown(Duration::from_secs(span.as_secs()))
        )
    });
    let held = format!("{}{since}{}", held(info), free(info));
    row(&name, kind, &ttl, &waiting(info), &held)
}

/// Returns the number of waiters in the queue.
pub(super) fn in_line(info: &NameInfo) -> u64 {
    info.waiting.len() as u64 + info.more_waiting
}

/// Returns the number of waiters in the queue. If the queue is empty, returns the number of
/// connections that listen, in the form `+3`, or `-` for none and `?` if it is unknown.
pub(super) fn waiting(info: &NameInfo) -> String {
    match (in_line(info), info.listening) {
        (0, None) => "?".to_owned(),
        (0, Some(0)) => "-".to_owned(),
        (0, Some(listening)) => format!("+{listening}"),
        (in_line, _) => in_line.to_string(),
    }
}

/// A holder, with its client and the minimum time for which it has held the name.
pub(super) struct Holder<'a> {
    pub(super) id: &'a str,
    pub(super) client: Option<&'a ClientInfo>,
    held_for: Option<Duration>,
    /// Whether the server keeps the hold for a time (`keep_for`), and no client renews it.
    pub(super) kept: bool,
}

impl<'a> From<&'a HoldInfo> for Holder<'a> {
    fn from(hold: &'a HoldInfo) -> Self {
        Self {
            id: &hold.id,
            client: hold.client.as_ref(),
            held_for: hold.held_for,
            kept: hold.kept,
        }
    }
}

impl<'a> From<&'a PermitInfo> for Holder<'a> {
    fn from(permit: &'a PermitInfo) -> Self {
        Self {
            id: &permit.id,
            client: permit.client.as_ref(),
            held_for: permit.held_for,
            kept: false,
        }
    }
}

pub(super) fn holders(info: &NameInfo) -> Vec<Holder<'_>> {
    match &info.found {
        Found::Lock(hold) => vec![hold.into()],
        Found::ReadWrite { writer, readers } => {
            writer.iter().chain(readers).map(Into::into).collect()
        }
        Found::Group(values) => values.iter().map(|value| (&value.hold).into()).collect(),
        Found::Leases { permits, .. } => permits.iter().map(Into::into).collect(),
        _ => Vec::new(),
    }
}

/// Returns the id of the hold that is shown first.
#[cfg(feature = "top")]
pub(super) fn first_holder(info: &NameInfo) -> Option<&str> {
    holders(info).first().map(|holder| holder.id)
}

/// Returns the longest known time for which a holder has had the name.
pub(super) fn held_for(info: &NameInfo) -> Option<Duration> {
    holders(info)
        .iter()
        .filter_map(|holder| holder.held_for)
        .max()
}

/// Returns the remaining TTL of the lease. For permits, returns the TTL of the permit that ends
/// first, because the key of a semaphore does not expire.
pub(super) fn left(info: &NameInfo) -> Ttl {
    match &info.found {
        Found::Leases { permits, .. } => permits.first().map_or(info.ttl, |permit| permit.ttl),
        _ => info.ttl,
    }
}

/// Returns the holder in a few words. A client that has not announced itself appears with its id.
pub(super) fn held(info: &NameInfo) -> String {
    held_by(info, |holder, _| Shown(holder.id).to_string())
}

/// Returns the holder like [`held`], but for a narrow column. A client that has not announced
/// itself (Redisson, or our own clients in their first second) appears with the beginning of its id
/// and the number after the colon.
#[cfg(feature = "top")]
pub(super) fn held_in_short(info: &NameInfo) -> String {
    held_by(info, |holder, info| {
        let id = holder.id;
        let short = id.split_once(':').and_then(|(client, thread)| {
            let is_uuid = client.len() == 36 && client.is_ascii();
            is_uuid.then(|| format!("{}:{thread}", &client[..8]))
        });
        match short {
            // The holder may be a client of leasehold: either the server does not list its clients,
            // or the client has ended.
            Some(short) if info.clients_denied || holder.kept => Shown(&short).to_string(),
            Some(short) => format!("Redisson? {}", Shown(&short)),
            None => Shown(id).to_string(),
        }
    })
}

fn held_by(info: &NameInfo, unknown: impl Fn(&Holder<'_>, &NameInfo) -> String) -> String {
    let of_count = match &info.found {
        Found::Count(count) => Some(format!("free permits or remaining count: {count}")),
        Found::Latch { left: 0 } => Some("open".to_owned()),
        Found::Latch { left } => Some(format!("remaining count: {left}")),
        _ => None,
    };
    if let Some(text) = of_count {
        return text;
    }
    let holders = holders(info);
    let Some(first) = holders.first() else {
        return "no client".to_owned();
    };
    let side = match &info.found {
        Found::ReadWrite {
            writer: Some(_), ..
        } => "to write: ",
        Found::ReadWrite { .. } => "to read: ",
        _ => "",
    };
    let who = match first.client {
        Some(client) => text::who(client),
        None => unknown(first, info),
    };
    let kept = if first.kept { "kept, was " } else { "" };
    // One client may hold several values of a group with one hold.
    let ids: BTreeSet<_> = holders.iter().map(|holder| holder.id).collect();
    let is_group = matches!(info.found, Found::Group(_));
    let more = ids.len() as u64 - 1 + if is_group { 0 } else { info.more };
    let mut text = format!("{side}{kept}{who}");
    // Writing to a string can't fail.
    if more > 0 {
        let _ = write!(text, ", and {more} more");
    }
    let values = holders.len() as u64 + info.more;
    if is_group && values > 1 {
        let _ = write!(text, "; {values} values");
    }
    text
}

/// Returns the number of free permits of a semaphore, in words.
pub(super) fn free(info: &NameInfo) -> String {
    match info.found {
        Found::Leases {
            free: Some(free), ..
        } => format!("; {free} free"),
        _ => String::new(),
    }
}

/// The progress of the listing, shown on a terminal at stderr.
struct Progress {
    shows: bool,
    is_shown: bool,
    begun: Instant,
    tick: Interval,
}

impl Progress {
    fn new() -> Self {
        let mut tick = interval(Duration::from_millis(200));
        // Delay missed ticks. Otherwise, progress would flicker when names arrive fast.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            shows: is_watched() && io::stderr().is_terminal(),
            is_shown: false,
            begun: Instant::now(),
            tick,
        }
    }

    async fn until_next(&mut self, names: &mut Listing) -> Option<leasehold::Result<Listed>> {
        if !self.shows {
            return names.next().await;
        }
        loop {
            tokio::select! {
                biased;
                next = names.next() => return next,
                _ = self.tick.tick() => {}
            }
            self.show(names.progress());
        }
    }

    fn show(&mut self, (looked_at, total): (u64, u64)) {
        if self.begun.elapsed() > output::SILENT_FOR {
            self.is_shown = true;
            output::write(format!("\rleasehold: {looked_at} of {total} keys "));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            output::write(format!("\r{:60}\r", ""));
        }
    }
}
