//! `leasehold ls`: the names on the server.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::inspect::{ClientInfo, Found, HoldInfo, Listed, Listing, NameInfo, PermitInfo, Ttl};
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
    while let Some(listed) = progress.until_next(&mut names).await {
        let listed = listed?;
        if args
            .kind
            .is_some_and(|kind| kind_of(&listed.info) != Some(kind))
        {
            continue;
        }
        if args
            .older_than
            .is_some_and(|span| held_for(&listed.info) <= Some(span))
        {
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
            true => json::of(&listed.name, &listed.info),
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
    if is_first && !args.json {
        output::note(format_args!(
            "no name at {} fits `{}`; a lock that is free has no key",
            client.address(),
            Shown(&args.pattern)
        ));
    }
    Ok(Exit::Success)
}

pub(super) fn kind_of(info: &NameInfo) -> Option<KindOfName> {
    match info.found {
        // Nobody holds it, but somebody waits in its line.
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

/// The kind in a word.
pub(super) fn kind_word(info: &NameInfo) -> &'static str {
    match kind_of(info) {
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

/// How many wait in line.
pub(super) fn in_line(info: &NameInfo) -> u64 {
    info.waiting.len() as u64 + info.more_waiting
}

/// Those in line, and `+` with the connections that listen.
pub(super) fn waiting(info: &NameInfo) -> String {
    match (in_line(info), info.listening) {
        (0, None) => "?".to_owned(),
        (0, Some(0)) => "-".to_owned(),
        (0, Some(listening)) => format!("+{listening}"),
        (in_line, _) => in_line.to_string(),
    }
}

/// A holder: the client that has it, and since when, at least.
pub(super) struct Holder<'a> {
    pub(super) id: &'a str,
    pub(super) client: Option<&'a ClientInfo>,
    held_for: Option<Duration>,
}

impl<'a> From<&'a HoldInfo> for Holder<'a> {
    fn from(hold: &'a HoldInfo) -> Self {
        Self {
            id: &hold.id,
            client: hold.client.as_ref(),
            held_for: hold.held_for,
        }
    }
}

impl<'a> From<&'a PermitInfo> for Holder<'a> {
    fn from(permit: &'a PermitInfo) -> Self {
        Self {
            id: &permit.id,
            client: permit.client.as_ref(),
            held_for: permit.held_for,
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

/// The id of the hold that is told first.
pub(super) fn first_holder(info: &NameInfo) -> Option<&str> {
    holders(info).first().map(|holder| holder.id)
}

/// How long somebody has had it, as far as is known.
pub(super) fn held_for(info: &NameInfo) -> Option<Duration> {
    holders(info)
        .iter()
        .filter_map(|holder| holder.held_for)
        .max()
}

/// How much is left of its lease; of permits, of the one that ends first. The key of a semaphore
/// has no end.
pub(super) fn left(info: &NameInfo) -> Ttl {
    match &info.found {
        Found::Leases { permits, .. } => permits.first().map_or(info.ttl, |permit| permit.ttl),
        _ => info.ttl,
    }
}

/// Who has it, in a few words.
pub(super) fn held(info: &NameInfo) -> String {
    let of_count = match &info.found {
        Found::Count(count) => Some(format!("{count} free, or to count down")),
        Found::Latch { left: 0 } => Some("open".to_owned()),
        Found::Latch { left } => Some(format!("{left} to count down")),
        _ => None,
    };
    if let Some(text) = of_count {
        return text;
    }
    let holders = holders(info);
    let Some(first) = holders.first() else {
        return "nobody".to_owned();
    };
    let mut text = match first.client {
        Some(client) => text::who(client),
        None => Shown(first.id).to_string(),
    };
    let more = holders.len() as u64 - 1 + info.more;
    if more > 0 {
        // Writing to a string can't fail.
        let _ = write!(text, ", and {more} more");
    }
    text
}

/// What is free of a semaphore.
pub(super) fn free(info: &NameInfo) -> String {
    match info.found {
        Found::Leases {
            free: Some(free), ..
        } => format!("; {free} free"),
        _ => String::new(),
    }
}

/// How far the walk is, on a terminal that is not where the names go.
struct Progress {
    shows: bool,
    is_shown: bool,
    begun: Instant,
    tick: Interval,
}

impl Progress {
    fn new() -> Self {
        let mut tick = interval(Duration::from_millis(200));
        // Where names come fast, it would flicker.
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
