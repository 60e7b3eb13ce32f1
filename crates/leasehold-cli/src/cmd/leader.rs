//! `leasehold leader`: shows the leader of an election.

use serde_json::json;

use super::acquire::utc;
use super::{name_to_look_at, until_signal};
use crate::cli::Leader as Args;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, tell};
use crate::server::Server;

pub(crate) async fn leader(args: Args, server: Server) -> Result<Exit, Failure> {
    until_signal(look(args, server)).await
}

async fn look(args: Args, server: Server) -> Result<Exit, Failure> {
    let name = name_to_look_at(args.name)?;
    let client = server.connect(None).await?;
    let election = client.election(&name);
    if !args.watch {
        let leader = election.leader().await?;
        if leader.is_some() || args.json {
            output::result(line(args.json, leader.as_ref())).await?;
        }
        return Ok(match leader {
            Some(_) => Exit::Success,
            None => Exit::Failed,
        });
    }
    let mut terms = election.observe();
    while let Some(seen) = terms.next().await {
        match seen {
            Ok(leader) => {
                if !output::more(line(args.json, leader.as_ref())).await? {
                    break;
                }
            }
            Err(error) if error.is_transient() => tell(Failure::from(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Exit::Success)
}

fn line(as_json: bool, leader: Option<&leasehold::Leader>) -> String {
    let Some(leader) = leader else {
        return if as_json { "null" } else { "-" }.to_owned();
    };
    if !as_json {
        let payload = leader.payload.as_deref().filter(|text| !text.is_empty());
        // A foreign program may have set a payload with line breaks.
        return output::Shown(payload.unwrap_or(&leader.id)).to_string();
    }
    json!({
        "id": leader.id,
        "label": leader.label,
        "host": leader.host,
        "payload": leader.payload,
        "token": leader.token,
        "since": leader.since.map(utc),
    })
    .to_string()
}
