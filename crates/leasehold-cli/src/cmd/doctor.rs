//! `leasehold doctor`: reports what endangers locks on this server.

mod brief;
mod findings;
mod promise;

use std::fmt::Write as _;

use leasehold::inspect::ServerFacts;
use leasehold::{Client, ErrorKind};
use serde_json::{Value, json};

pub(crate) use self::brief::brief;
use self::findings::{Finding, Place, Severity};
use super::until_signal;
use crate::cli::Doctor;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::server::Server;

pub(crate) async fn doctor(args: Doctor, server: Server) -> Result<Exit, Failure> {
    until_signal(look(args, server)).await
}

async fn look(args: Doctor, server: Server) -> Result<Exit, Failure> {
    let client = server.connect(None).await?;
    let name = format!("{}:{:08x}", args.name, fastrand::u32(..));
    let servers = client.examine(&name).await?;
    let place = Place::of(client.address(), &servers);
    let mut findings = findings::of(place, &servers);
    findings.extend(findings::too_few_replicas(args.replicas, &servers));
    findings.extend(try_out(&client, &name).await?);
    // Sort the worst finding first. The sort is stable, so findings of equal severity keep their
    // order.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    client.close().await;
    output::result(match args.json {
        true => as_json(place, &servers, &findings).to_string(),
        false => as_text(place, &servers, &findings),
    })
    .await?;
    let worst = findings.iter().map(|finding| finding.severity).max();
    Ok(match worst {
        None | Some(Severity::Note) => Exit::Success,
        Some(Severity::Warning) => Exit::Failed,
        Some(Severity::Unsafe) => Exit::Usage,
    })
}

/// Acquires and releases locks of the main kinds, as this user. If the server denies this to the
/// user, or can't do it at present, this is a finding. Any other failure ends the check.
async fn try_out(client: &Client, name: &str) -> Result<Option<Finding>, Failure> {
    let tried = [
        ("plain locks", lock(client, name).await),
        ("fair locks", fair(client, &format!("{name}:fair")).await),
        ("read-write locks", rw(client, &format!("{name}:rw")).await),
    ];
    let (mut denied, mut first) = (Vec::new(), None);
    for (kind, outcome) in tried {
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Denied => {
                denied.push(kind);
                first.get_or_insert(error);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost) => {
                return Ok(Some(findings::fails(client.address(), &error.to_string())));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let kinds = denied.join(", ");
    Ok(first.map(|error| findings::denied(&kinds, client.address(), &error.to_string())))
}

async fn lock(client: &Client, name: &str) -> leasehold::Result<()> {
    match client.lock(name).try_acquire().await? {
        Some(guard) => guard.release().await,
        None => Ok(()),
    }
}

async fn fair(client: &Client, name: &str) -> leasehold::Result<()> {
    match client.fair_lock(name).try_acquire().await? {
        Some(guard) => guard.release().await,
        None => Ok(()),
    }
}

async fn rw(client: &Client, name: &str) -> leasehold::Result<()> {
    if let Some(guard) = client.rw_lock(name).try_read().await? {
        guard.release().await?;
    }
    match client.rw_lock(name).try_write().await? {
        Some(guard) => guard.release().await,
        None => Ok(()),
    }
}

fn as_text(place: Place, servers: &[ServerFacts], findings: &[Finding]) -> String {
    let mut text = String::new();
    for server in servers {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{}: {}, {}",
            Shown(&server.address),
            Shown(&findings::version(server)),
            place.in_words()
        );
    }
    let _ = write!(text, "  promise  {}", place.promise());
    for finding in findings {
        let _ = write!(
            text,
            "\n{}: {} ({})\n  do      {}",
            finding.severity.in_words(),
            Shown(&finding.says),
            findings::list_of(&finding.addresses),
            finding.advice
        );
        if let Some(sentence) = finding.breaks {
            let _ = write!(text, "\n  breaks  the promise \"{sentence}\"");
        }
    }
    if findings.is_empty() {
        let _ = write!(text, "\nnothing that endangers locks was found");
    }
    text
}

fn as_json(place: Place, servers: &[ServerFacts], findings: &[Finding]) -> Value {
    let servers: Vec<_> = servers
        .iter()
        .map(|server| {
            json!({
                "address": server.address,
                "version": findings::version(server),
                "clock_offset_ms": server.clock_offset_ms,
                "commands": server.commands,
                "refused": server.refused,
            })
        })
        .collect();
    let findings: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "severity": finding.severity.in_words(),
                "about": finding.about,
                "address": finding.addresses.first(),
                "addresses": finding.addresses,
                "says": finding.says,
                "do": finding.advice,
                "breaks": finding.breaks,
            })
        })
        .collect();
    json!({
        "topology": place.in_words(),
        "promise": place.promise(),
        "servers": servers,
        "findings": findings,
    })
}
