//! `leasehold show`: who holds a lock, and for how long.

use std::fmt::Write as _;

use leasehold::{LockInfo, Ttl};
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
    let info = client.lock(&name).inspect().await?;
    output::result(if args.json {
        as_json(&name, &info)
    } else {
        as_text(&name, &info)
    })?;
    Ok(Exit::Success)
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

fn as_text(name: &str, info: &LockInfo) -> String {
    let name = Shown(name);
    if !info.is_locked() {
        return format!("`{name}` is free");
    }
    let mut text = format!("`{name}` is held");
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
    let _ = write!(text, "\n  TTL     {ttl}");
    text
}

fn as_json(name: &str, info: &LockInfo) -> String {
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
    })
    .to_string()
}
