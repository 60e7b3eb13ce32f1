//! Presence: each client says who it is, in a key of its own that ends by itself. What is read
//! there changes what is shown to an operator, and nothing else: anybody may have written it.

#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "clients of an embedded keyspace say nothing")
)]

mod book;
pub(crate) mod steps;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::failure::Cause;
use crate::clock::Moment;
use crate::context::Context;
use crate::text::Shown;
pub(super) use book::Book;
pub use book::ClientInfo;
use steps::{LONGEST_LIST, Said};

/// Between two announcements.
const EVERY: Duration = Duration::from_secs(20);
/// How long one is believed.
const BELIEVED_MS: u64 = 60_000;
/// Before the first one. A program that ends sooner needs none, and its first acquire does not
/// stand behind it.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// The longest label. The server keeps it as long as the client lives.
const LONGEST_LABEL: usize = 200;

/// The label of a client whose user has given it none: `$LEASEHOLD_LABEL`, or else the program's
/// name.
pub(crate) fn default_label() -> String {
    let told = std::env::var("LEASEHOLD_LABEL").ok();
    let program = || {
        let path = std::env::current_exe().ok()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    };
    let label = told.filter(|label| !label.is_empty()).or_else(program);
    label.unwrap_or_else(|| "unknown".to_owned())
}

/// Control characters would reach the terminals of others.
pub(crate) fn clean_label(label: &str) -> String {
    let mut clean = String::new();
    for letter in label.trim().chars() {
        let letter = if letter.is_control() { ' ' } else { letter };
        if clean.len() + letter.len_utf8() > LONGEST_LABEL {
            break;
        }
        clean.push(letter);
    }
    clean
}

/// Announces the client for as long as it lives and is not closed.
pub(crate) fn start(context: &Arc<Context>, label: String) {
    let presence = Presence {
        context: Arc::downgrade(context),
        label,
        host: host(),
        begun: context.clock.now(),
        waits: HashMap::new(),
    };
    context.cleanup.carry(presence.keep());
}

/// The client is closed: nobody has to believe for another minute that it is there.
pub(crate) fn leave(context: &Context) {
    if context.has_been_announced() {
        let said = Said {
            id: &context.client_id,
            label: "",
            host: "",
            address: "",
            age: Duration::ZERO,
            holds: "",
            waits: "",
        };
        // Nobody waits for these: they end by themselves as well.
        drop(context.backend.submit(steps::announce(&said, 0)));
        drop(context.backend.submit(steps::enrol(&context.client_id, 0)));
    }
}

struct Presence {
    /// The task must not keep the connection of a client that is gone.
    context: Weak<Context>,
    label: String,
    host: String,
    begun: Moment,
    /// The names that are waited for, and when that was seen first.
    waits: HashMap<String, Moment>,
}

impl Presence {
    async fn keep(mut self) {
        tokio::time::sleep(FIRST_AFTER).await;
        while let Some(replies) = self.announce() {
            for reply in replies {
                match reply.await {
                    Ok(_) => {}
                    Err(failure) if matches!(failure.cause, Cause::Denied(_)) => {
                        // Each further one would cost the calls that it travels with a second
                        // attempt.
                        tracing::debug!(cause = %failure.cause, "the client is not announced");
                        return;
                    }
                    // The next one comes soon enough.
                    Err(_) => {}
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Sends an announcement; `None` when the client is gone or closed.
    fn announce(&mut self) -> Option<[crate::backend::Reply; 2]> {
        let context = self
            .context
            .upgrade()
            .filter(|context| !context.is_closed() && !context.is_forked())?;
        let (holds, waits) = (self.holds(&context), self.waits(&context));
        let said = Said {
            id: &context.client_id,
            label: &self.label,
            host: &self.host,
            address: &context.backend.seen_as().unwrap_or_default(),
            age: context.clock.now().saturating_sub(self.begun),
            holds: &holds,
            waits: &waits,
        };
        let submit = |operation| context.backend.submit(operation);
        let replies = [
            submit(steps::announce(&said, BELIEVED_MS)),
            submit(steps::enrol(&context.client_id, BELIEVED_MS)),
        ];
        context.note_announced();
        Some(replies)
    }

    /// The oldest holds first: the list has an end.
    fn holds(&self, context: &Context) -> String {
        let mut holds: Vec<_> = context.standing.all();
        holds.retain(|hold| hold.loss().is_none());
        // Cached: a hold that is handed over meanwhile begins anew.
        holds.sort_by_cached_key(|hold| hold.since());
        let (now, own) = (context.clock.now(), format!("{}:", context.client_id));
        let mut list = String::new();
        for hold in holds {
            let id = hold.steps.wire_id();
            let id = id.strip_prefix(&own).unwrap_or(id);
            let ms = now.saturating_sub(hold.since()).as_millis();
            if list.len() + id.len() + 25 > LONGEST_LIST {
                break;
            }
            // Writing to a string can't fail.
            let _ = write!(list, "{id}:{ms} ");
        }
        list
    }

    fn waits(&mut self, context: &Context) -> String {
        let now = context.clock.now();
        let names = context.locals.waited_for();
        self.waits.retain(|name, _| names.contains(name));
        for name in names {
            self.waits.entry(name).or_insert(now);
        }
        let mut waits: Vec<_> = self.waits.iter().collect();
        waits.sort_by_key(|(_, since)| **since);
        let mut list = String::new();
        for (name, since) in waits {
            let ms = now.saturating_sub(*since).as_millis();
            if !name.contains('\n') && list.len() + name.len() + 25 <= LONGEST_LIST {
                let _ = writeln!(list, "{ms} {name}");
            }
        }
        list
    }
}

fn host() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    Shown(&name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_no_control_characters_and_an_end() {
        assert_eq!(clean_label(" batch\u{1b}[2J\n1 "), "batch [2J 1");
        assert!(clean_label(&"ä".repeat(500)).len() <= LONGEST_LABEL);
    }
}
