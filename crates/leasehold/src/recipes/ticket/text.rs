//! The ticket, and its string form.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use crate::config::wire_ms;
use crate::error::{Error, ErrorKind, Result};
use crate::primitives::expirable::PermitId;
use crate::text::Shown;

/// The first field of a ticket: its format and version.
const VERSION: &str = "lh1";

/// The kind of hold that a [`Ticket`] passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TicketKind {
    /// A hold of a plain [`Lock`](crate::Lock).
    Plain,
    /// A hold of a [`FencedLock`](crate::FencedLock), or of a plain lock that has drawn a token.
    Fenced,
    /// A hold of a [`FairLock`](crate::FairLock).
    Fair,
    /// A hold of the read side of an [`RwLock`](crate::RwLock).
    Read,
    /// A hold of the write side of an [`RwLock`](crate::RwLock).
    Write,
    /// Permits of an [`ExpirableSemaphore`](crate::ExpirableSemaphore).
    Permits,
}

impl TicketKind {
    const ALL: [Self; 6] = [
        Self::Plain,
        Self::Fenced,
        Self::Fair,
        Self::Read,
        Self::Write,
        Self::Permits,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits => "permits",
        }
    }
}

impl fmt::Display for TicketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A hold in the form of a string, with which another process can [resume](crate::Client::resume)
/// it.
///
/// [`LockGuard::into_ticket`](crate::LockGuard::into_ticket) makes it. The string
/// ([`to_string`](ToString::to_string), [`parse`](str::parse)) is one line of ASCII letters, digits
/// and `.`, `_`, `:`, `-`, so it needs no quotes in a shell, in an environment variable or in a
/// URL. It contains neither the server's address nor any secret of the server. But a process that
/// can reach the server can take the hold with the ticket, so protect the ticket as you would
/// protect the hold.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::ticket::{Ticket, TicketKind};
///
/// let client = leasehold::Client::embedded();
/// let guard = client.fair_lock("report").acquire().await?;
/// let line = guard.into_ticket(Duration::from_secs(60)).await?.to_string();
///
/// let ticket: Ticket = line.parse()?;
/// assert_eq!((ticket.name(), ticket.kind()), ("report", TicketKind::Fair));
/// client.resume(&ticket).await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "without its ticket, the hold stays until its lease ends"]
pub struct Ticket {
    pub(super) kind: TicketKind,
    /// The name on the server, with the prefix.
    pub(super) name: String,
    pub(super) hold: TicketHold,
    pub(super) lease: Duration,
    pub(super) token: Option<u64>,
}

/// The hold of a ticket on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TicketHold {
    /// The client and the number of a hold: `uuid` and `n` of `uuid:n`.
    Lock {
        client: String,
        number: u64,
    },
    Permits(Vec<PermitId>),
}

impl Ticket {
    /// Returns the name of the lock or semaphore on the server, with the client's
    /// [prefix](crate::ClientBuilder::prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the hold.
    #[must_use]
    pub fn kind(&self) -> TicketKind {
        self.kind
    }

    /// Returns how long the hold lasts after [`into_ticket`](crate::LockGuard::into_ticket), if no
    /// process resumes it.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the fencing token of the hold that became the ticket. The hold that replaces it gets
    /// a greater token.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns the id of the hold on the server, as [`Client::inspect`](crate::Client::inspect)
    /// shows it. For permits, this is the id of the first one.
    #[must_use]
    pub fn holder_id(&self) -> String {
        match (&self.hold, self.kind) {
            (TicketHold::Lock { client, number }, TicketKind::Write) => {
                format!("{client}:{number}:write")
            }
            (TicketHold::Lock { client, number }, _) => format!("{client}:{number}"),
            (TicketHold::Permits(ids), _) => {
                ids.first().map(PermitId::to_string).unwrap_or_default()
            }
        }
    }
}

impl TicketHold {
    /// Reads the id of a hold of a lock, or of either side of a read-write lock.
    pub(super) fn of_lock(wire_id: &str) -> Option<Self> {
        let id = wire_id.strip_suffix(":write").unwrap_or(wire_id);
        let (client, number) = id.split_once(':')?;
        Self::lock(client, number)
    }

    fn lock(client: &str, number: &str) -> Option<Self> {
        // Accept only the form that this library writes, so that each ticket has exactly one string
        // form.
        let uuid = uuid::Uuid::try_parse(client).ok()?;
        let number: u64 = number.parse().ok()?;
        (uuid.to_string() == client).then(|| Self::Lock {
            client: client.to_owned(),
            number,
        })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}:{}:", self.kind)?;
        escape(&self.name, f)?;
        f.write_char(':')?;
        match &self.hold {
            TicketHold::Lock { client, number } => write!(f, "{client}.{number}")?,
            TicketHold::Permits(ids) => {
                for (n, id) in ids.iter().enumerate() {
                    let dot = if n == 0 { "" } else { "." };
                    write!(f, "{dot}{id}")?;
                }
            }
        }
        write!(f, ":{}:", wire_ms(self.lease))?;
        match self.token {
            Some(token) => write!(f, "{token}"),
            None => f.write_char('-'),
        }
    }
}

/// Writes a name, with `_` and two hex digits in place of each byte that may be special for another
/// program.
fn escape(name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' => f.write_char(byte.into())?,
            _ => write!(f, "_{byte:02x}")?,
        }
    }
    Ok(())
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        bytes.push(match first {
            b'_' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for Ticket {
    type Err = Error;

    /// Reads a ticket. White space around it is ignored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] if `text` is not a ticket, or is a ticket of a newer version.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        read(text)
            // Each ticket has exactly one string form, so a string that was changed on its way is
            // refused.
            .filter(|ticket| ticket.to_string() == text)
            .ok_or_else(|| {
                let what = match text.starts_with("lh") && !text.starts_with("lh1:") {
                    true => "a ticket of this version; use the same version of Leasehold",
                    false => {
                        "a ticket; pass the whole string of a ticket, which begins with `lh1:`"
                    }
                };
                Error::new(
                    ErrorKind::Misuse,
                    format!("`{}` is not {what}", Shown(text)),
                )
            })
    }
}

fn read(text: &str) -> Option<Ticket> {
    let fields: Vec<_> = text.split(':').collect();
    let [VERSION, kind, name, hold, lease_ms, token] = fields[..] else {
        return None;
    };
    let kind = TicketKind::ALL.into_iter().find(|one| one.name() == kind)?;
    let hold = match kind {
        TicketKind::Permits => {
            let ids = hold.split('.').map(str::parse).collect::<Result<_>>();
            TicketHold::Permits(ids.ok()?)
        }
        _ => {
            let (client, number) = hold.split_once('.')?;
            TicketHold::lock(client, number)?
        }
    };
    let name = unescape(name).filter(|name| !name.is_empty())?;
    Some(Ticket {
        kind,
        name,
        hold,
        lease: Duration::from_millis(lease_ms.parse().ok()?),
        token: match token {
            "-" => None,
            digits => Some(digits.parse().ok()?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "6e2c1d0a-0000-4000-8000-00000000000f";

    fn ticket(name: &str) -> Ticket {
        Ticket {
            kind: TicketKind::Write,
            name: name.into(),
            hold: TicketHold::of_lock(&format!("{CLIENT}:17:write")).expect("an id"),
            lease: Duration::from_secs(60),
            token: Some(5),
        }
    }

    #[test]
    fn text_is_harmless_and_read_back_for_every_name() {
        for name in ["a", "a:b{c}", "../é €\n\0'\"$(id)`%_=+", "_", "a_3ab"] {
            let ticket = ticket(name);
            let text = ticket.to_string();
            let is_harmless = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
            assert!(text.chars().all(is_harmless), "{text}");
            assert_eq!(text.parse::<Ticket>().expect(name), ticket);
            let line = format!(" {text}\n");
            assert_eq!(line.parse::<Ticket>().expect(name), ticket);
        }
        assert_eq!(
            ticket("orders:42").to_string(),
            format!("lh1:write:orders_3a42:{CLIENT}.17:60000:5")
        );
        assert_eq!(ticket("a").holder_id(), format!("{CLIENT}:17:write"));
    }

    #[test]
    fn permits_are_read_back() {
        let ids = ["000102030405060708090a0b0c0d0e0f", "ff".repeat(16).as_str()]
            .map(|id| id.parse().expect("an id"));
        let ticket = Ticket {
            kind: TicketKind::Permits,
            hold: TicketHold::Permits(ids.to_vec()),
            token: None,
            ..ticket("s")
        };
        assert_eq!(ticket.to_string().parse::<Ticket>().expect("it"), ticket);
    }

    #[test]
    fn text_that_was_changed_is_refused() {
        let good = ticket("name").to_string();
        let mut bad: Vec<_> = (0..good.len()).map(|end| good[..end].to_owned()).collect();
        for (from, to) in [
            ("lh1", "lh2"),
            ("write", "group"),
            ("write", "permits"),
            (".17", ".+17"),
            (".17", ".017"),
            ("6e2c", "6E2C"),
            (":60000", ":060000"),
            (":60000", ":-1"),
            ("name", ""),
            ("name", "n_6"),
            ("name", "n_FF"),
            ("name", "n_61me"),
            ("name", "_ff"),
            ("name", "na:me"),
            (":5", ":"),
            (":5", ":5:5"),
            (":5", ":x"),
        ] {
            bad.push(good.replacen(from, to, 1));
        }
        for text in bad {
            let error = text.parse::<Ticket>().expect_err(&text);
            assert_eq!(error.kind(), ErrorKind::Misuse, "{text}");
        }
    }
}
