//! `leasehold show`: who holds a lock, and for how long.

use std::fmt::Write as _;

use leasehold::{Client, ErrorKind, LockInfo, Ttl};
use serde_json::json;

use super::name_of_lock;
use crate::cli::Show;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::server::Server;

pub(crate) async fn show(args: &Show, server: &Server) -> Result<Exit, Failure> {
    let name = name_of_lock(args.name.clone())?;
    let client = server.connect(None).await?;
    let seen = Seen::look(&client, &name).await?;
    output::result(if args.json {
        seen.as_json(&name)
    } else {
        seen.as_text(&name)
    })?;
    Ok(Exit::Success)
}

/// What there is to see of a lock, whatever its kind.
struct Seen {
    info: LockInfo,
    /// Of a read-write lock: how it is held.
    mode: Option<&'static str>,
    /// Of a fair lock: who stands in line.
    waiting: Vec<String>,
}

impl Seen {
    async fn look(client: &Client, name: &str) -> Result<Self, Failure> {
        match client.lock(name).inspect().await {
            Ok(info) => Ok(Self {
                info,
                mode: None,
                waiting: client.fair_lock(name).waiters().await?,
            }),
            Err(error) if error.kind() == ErrorKind::WrongKind => {
                let seen = Self::look_at_both_sides(client, name).await;
                // If it is no read-write lock either, the first word stands.
                seen.map_err(|_| error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn look_at_both_sides(client: &Client, name: &str) -> leasehold::Result<Self> {
        let lock = client.rw_lock(name);
        let write = lock.write_lock().inspect().await?;
        let (info, mode) = if write.is_locked() {
            (write, "write")
        } else {
            (lock.read_lock().inspect().await?, "read")
        };
        Ok(Self {
            mode: info.is_locked().then_some(mode),
            info,
            waiting: Vec::new(),
        })
    }
}

/// Who holds it, in one line: for a story.
pub(crate) fn holder_of(info: &LockInfo) -> Option<String> {
    let holder = info.holders.first()?;
    let mut line = format!("held by {}", Shown(&holder.id));
    if let Ttl::Left(left) = info.ttl {
        // Writing to a string can't fail.
        let _ = write!(
            line,
            ", for {} more unless it is renewed",
            duration::shown(left)
        );
    }
    Some(line)
}

impl Seen {
    fn as_text(&self, name: &str) -> String {
        let (name, info) = (Shown(name), &self.info);
        if !info.is_locked() {
            return format!("`{name}` is free{}", self.line_of_waiters());
        }
        let mode = self
            .mode
            .map(|mode| format!(" to {mode}"))
            .unwrap_or_default();
        let mut text = format!("`{name}` is held{mode}");
        for holder in &info.holders {
            let _ = write!(
                text,
                "\n  holder  {}\n  count   {}",
                Shown(&holder.id),
                holder.count
            );
        }
        let ttl = match info.ttl {
            Ttl::Left(left) => duration::shown(left),
            Ttl::NoExpiry => "none: it does not end by itself".to_owned(),
            _ => "over".to_owned(),
        };
        let _ = write!(text, "\n  TTL     {ttl}{}", self.line_of_waiters());
        text
    }

    /// Those who stand in line, the first one first.
    fn line_of_waiters(&self) -> String {
        self.waiting.iter().fold(String::new(), |mut text, id| {
            let _ = write!(text, "\n  waits   {}", Shown(id));
            text
        })
    }

    fn as_json(&self, name: &str) -> String {
        let info = &self.info;
        let holders: Vec<_> = info
            .holders
            .iter()
            .map(|holder| json!({ "id": holder.id, "count": holder.count }))
            .collect();
        let ttl_ms = match info.ttl {
            Ttl::Left(left) => u64::try_from(left.as_millis()).ok(),
            _ => None,
        };
        json!({
            "name": name,
            "held": info.is_locked(),
            "holders": holders,
            "ttl_ms": ttl_ms,
            "mode": self.mode,
            "waiting": self.waiting,
        })
        .to_string()
    }
}
