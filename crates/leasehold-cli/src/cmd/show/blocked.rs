//! `leasehold show --blocked-by`: what the holders of a name wait for, and who has that.

use std::fmt::Write as _;

use leasehold::Client;
use leasehold::inspect::{ClientInfo, NameInfo};
use serde_json::json;

use super::super::ls::holders;
use super::{json as as_json, text as as_text};
use crate::output::Shown;

/// So far it is followed, and of so many holders of a name.
const DEEPEST: usize = 16;
const MOST_HOLDERS: usize = 10;
const MOST_LINKS: usize = 200;

/// A holder on the way from the name.
pub(super) struct Link {
    name: String,
    depth: usize,
    id: String,
    client: Option<ClientInfo>,
    /// What its client waits for and somebody before it on the way has.
    circle: Option<String>,
}

/// The holders, each with those behind it.
pub(super) async fn chain(
    client: &Client,
    name: &str,
    seen: &NameInfo,
) -> leasehold::Result<Vec<Link>> {
    let mut chain = Vec::new();
    // The names before each, so that a circle ends.
    let mut todo = links(seen, name, &[]);
    while let Some((way, link)) = todo.pop() {
        if chain.len() == MOST_LINKS {
            break;
        }
        let mut link = link;
        let waits_for = link.client.iter().flat_map(|client| &client.waits_for);
        for next in waits_for.cloned().collect::<Vec<_>>() {
            if way.contains(&next) {
                link.circle = Some(next);
            } else if way.len() < DEEPEST {
                let seen = client.inspect(&next).await?;
                todo.extend(links(&seen, &next, &way));
            }
        }
        chain.push(link);
    }
    Ok(chain)
}

/// The holders of a name, the first one last, each with the names on the way to it and its own.
fn links(seen: &NameInfo, name: &str, way: &[String]) -> Vec<(Vec<String>, Link)> {
    let holders = holders(seen).into_iter().take(MOST_HOLDERS).rev();
    let links = holders.map(|holder| {
        let link = Link {
            name: name.to_owned(),
            depth: way.len(),
            id: holder.id.to_owned(),
            client: holder.client.cloned(),
            circle: None,
        };
        let mut way = way.to_vec();
        way.push(name.to_owned());
        (way, link)
    });
    links.collect()
}

pub(super) fn text(name: &str, chain: &[Link]) -> String {
    if chain.is_empty() {
        return format!("nobody holds `{}`", Shown(name));
    }
    let mut text = String::new();
    for link in chain {
        let begins = if text.is_empty() { "" } else { "\n" };
        let (indent, what) = match link.depth {
            0 => (0, ""),
            depth => (depth * 2, "whose client waits for "),
        };
        // Writing to a string can't fail.
        let _ = write!(
            text,
            "{begins}{:indent$}{what}`{}`, held by {}",
            "",
            Shown(&link.name),
            Shown(&link.id)
        );
        if let Some(client) = &link.client {
            let _ = write!(text, ", {}", as_text::who(client));
        }
        if let Some(circle) = &link.circle {
            let _ = write!(
                text,
                "\n{:1$}whose client waits for `{2}`: a circle, unless these are different tasks",
                "",
                indent + 2,
                Shown(circle)
            );
        }
    }
    text
}

pub(super) fn json(name: &str, chain: &[Link]) -> String {
    let links = chain.iter().map(|link| {
        json!({
            "name": link.name,
            "depth": link.depth,
            "holder": {
                "id": link.id,
                "client": link.client.as_ref().map(as_json::of_client),
            },
            "circle": link.circle.is_some(),
        })
    });
    let links: Vec<_> = links.collect();
    let circle = chain.iter().any(|link| link.circle.is_some());
    json!({ "name": name, "circle": circle, "chain": links }).to_string()
}
