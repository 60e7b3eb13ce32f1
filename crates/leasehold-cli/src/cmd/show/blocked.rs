//! `leasehold show --blocked-by`: shows which names the holders of a name wait for, and who holds
//! those names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;

use leasehold::Client;
use leasehold::inspect::{ClientInfo, NameInfo};
use serde_json::{Value, json};

use super::super::acquire::KEPT;
use super::super::ls::holders;
use super::{json as as_json, text as as_text};
use crate::output::Shown;

/// The maximum number of names to visit.
const MOST_NAMES: usize = 100;

/// The maximum number of holders to print for each name.
const MOST_HOLDERS: usize = 10;

/// The links and circles that were found, starting from a name.
#[derive(Default)]
pub(super) struct Chain {
    links: Vec<Link>,
    /// The names of each circle, the shortest circle first.
    circles: Vec<Vec<String>>,
    /// Whether some names were not visited, or some holders are not printed.
    is_cut: bool,
}

/// A holder of a name, or a name that was already printed.
struct Link {
    name: String,
    depth: usize,
    holder: Option<Holder>,
}

struct Holder {
    id: String,
    client: Option<ClientInfo>,
    /// Whether the server keeps the hold for a time (`keep_for`), and no client renews it. The
    /// holder's client may have ended, and the waits of this client do not delay the end of the
    /// hold.
    kept: bool,
}

/// A part that has yet to be printed.
enum Next {
    Name {
        name: String,
        depth: usize,
        /// The client that waits for the name, if the name was found through a wait.
        waiter: Option<String>,
    },
    Holder(Link),
}

/// The names that were visited.
#[derive(Default)]
struct Walk {
    seen: HashMap<String, NameInfo>,
    told: HashSet<String>,
    /// The possible edges of circles. An edge leads from a name to the name that a holder's client
    /// waits for, if this client waits for only one name.
    leads: BTreeMap<String, BTreeSet<String>>,
    chain: Chain,
}

/// Returns the holders of a name, each with the names that its client waits for, the holders of
/// those names, and so on. Each name appears once, because the clients of one service may wait for
/// hundreds of names that other clients of this service hold.
pub(super) async fn chain(
    client: &Client,
    name: &str,
    seen: &NameInfo,
) -> leasehold::Result<Chain> {
    let mut walk = Walk::default();
    walk.seen.insert(name.to_owned(), seen.clone());
    let mut todo = vec![Next::Name {
        name: name.to_owned(),
        depth: 0,
        waiter: None,
    }];
    while let Some(next) = todo.pop() {
        match next {
            Next::Name {
                name,
                depth,
                waiter,
            } => {
                if !walk.seen.contains_key(&name) {
                    if walk.seen.len() == MOST_NAMES {
                        walk.chain.is_cut = true;
                        continue;
                    }
                    let seen = client.inspect(&name).await?;
                    walk.seen.insert(name.clone(), seen);
                }
                todo.extend(walk.name(&name, depth, waiter.as_deref()));
            }
            Next::Holder(link) => todo.extend(walk.holder(link)),
        }
    }
    walk.chain.circles = circles(&walk.leads);
    Ok(walk.chain)
}

impl Walk {
    /// Visits a name. Returns its holders, which are visited next, in reverse order.
    fn name(&mut self, name: &str, depth: usize, waiter: Option<&str>) -> Vec<Next> {
        let seen = &self.seen[name];
        if waiter.is_some_and(|client| has_got_it(seen, client)) {
            return Vec::new();
        }
        let link = |holder| Link {
            name: name.to_owned(),
            depth,
            holder,
        };
        let all = holders(seen);
        if !self.told.insert(name.to_owned()) {
            if !all.is_empty() {
                self.chain.links.push(link(None));
            }
            return Vec::new();
        }
        self.chain.is_cut |= all.len() > MOST_HOLDERS || seen.more > 0;
        let some = all.into_iter().take(MOST_HOLDERS).rev();
        let holders = some.map(|holder| Holder {
            id: holder.id.to_owned(),
            client: holder.client.cloned(),
            kept: holder.kept,
        });
        holders
            .map(|holder| Next::Holder(link(Some(holder))))
            .collect()
    }

    /// Adds a holder. Returns the names that its client waits for, which are visited next.
    fn holder(&mut self, link: Link) -> Vec<Next> {
        let holder = link.holder.as_ref().filter(|one| !one.kept);
        let client = holder.and_then(|one| one.client.as_ref());
        let mut next = Vec::new();
        if let Some(client) = client {
            let waits_for = client.waits_for.iter().filter(|name| {
                let seen = self.seen.get(*name);
                seen.is_none_or(|seen| !has_got_it(seen, &client.id))
            });
            let waits_for: Vec<_> = waits_for.collect();
            if let [only] = waits_for[..] {
                let leads = self.leads.entry(link.name.clone()).or_default();
                leads.insert(only.clone());
            }
            next.extend(waits_for.into_iter().rev().map(|name| Next::Name {
                name: name.clone(),
                depth: link.depth + 1,
                waiter: Some(client.id.clone()),
            }));
        }
        self.chain.links.push(link);
        next
    }
}

/// Returns whether the client's wait for this name has ended with a hold: the client holds the name
/// and is not a waiter.
fn has_got_it(seen: &NameInfo, client: &str) -> bool {
    let is_its = |id: &str| id.split(':').next() == Some(client);
    let holds = holders(seen)
        .iter()
        .any(|holder| holder.client.is_some_and(|info| info.id == client));
    holds && !seen.waiting.iter().any(|waiter| is_its(&waiter.id))
}

/// Returns the circles among these names, the shortest first. A client that waits for several names
/// does so in several tasks, and one of these tasks may continue. So `leads` contains only clients
/// that wait for a single name.
fn circles(leads: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut found = BTreeSet::new();
    for start in leads.keys() {
        if let Some(mut circle) = shortest(leads, start) {
            // Each name of a circle finds the same circle. Begin it with its first name, so that it is
            // reported once.
            let first = circle.iter().enumerate().min_by_key(|(_, name)| *name);
            let first = first.map_or(0, |(place, _)| place);
            circle.rotate_left(first);
            found.insert((circle.len(), circle));
        }
    }
    found.into_iter().map(|(_, circle)| circle).collect()
}

/// Returns the shortest path from a name back to the same name.
fn shortest(leads: &BTreeMap<String, BTreeSet<String>>, start: &str) -> Option<Vec<String>> {
    let mut before: HashMap<&str, &str> = HashMap::new();
    let mut todo = VecDeque::from([start]);
    while let Some(name) = todo.pop_front() {
        for next in leads.get(name).into_iter().flatten() {
            if next == start {
                let back = std::iter::successors(Some(name), |name| before.get(name).copied());
                let mut way: Vec<_> = back.map(str::to_owned).collect();
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(next.as_str()) {
                before.insert(next, name);
                todo.push_back(next);
            }
        }
    }
    None
}

pub(super) fn text(name: &str, chain: &Chain) -> String {
    if chain.links.is_empty() {
        return format!("no client holds `{}`", Shown(name));
    }
    let mut lines: Vec<_> = chain.links.iter().map(line).collect();
    for circle in &chain.circles {
        let names = circle.iter().chain(circle.first());
        let names: Vec<_> = names.map(|name| format!("`{}`", Shown(name))).collect();
        let way = names.join(" -> ");
        lines.push(format!(
            "circle: {way} (the holder of each name waits for the next name, unless different tasks hold and wait)"
        ));
    }
    if chain.is_cut {
        lines.push(format!(
            "there is more: show follows at most {MOST_NAMES} names, and {MOST_HOLDERS} holders of each"
        ));
    }
    lines.join("\n")
}

fn line(link: &Link) -> String {
    let what = match link.depth {
        0 => "",
        _ => "whose client waits for ",
    };
    let mut text = format!("{:1$}{what}`{2}`", "", link.depth * 2, Shown(&link.name));
    let Some(holder) = &link.holder else {
        text += ": see above";
        return text;
    };
    if holder.kept {
        text += ", ";
        text += KEPT;
    }
    let by = if holder.kept {
        "; it was held by"
    } else {
        ", held by"
    };
    // Writing to a string can't fail.
    let _ = write!(text, "{by} {}", Shown(&holder.id));
    if let Some(client) = &holder.client {
        let _ = write!(text, ", {}", as_text::who(client));
    }
    text
}

pub(super) fn json(name: &str, chain: &Chain) -> String {
    let holder = |holder: &Holder| {
        json!({
            "id": holder.id,
            "kept": holder.kept,
            "client": holder.client.as_ref().map(as_json::of_client),
        })
    };
    let links = chain.links.iter().map(|link| {
        json!({
            "name": link.name,
            "depth": link.depth,
            "holder": link.holder.as_ref().map(holder),
            "see_above": link.holder.is_none(),
        })
    });
    json!({
        "name": name,
        "circle": !chain.circles.is_empty(),
        "circles": chain.circles,
        "chain": links.collect::<Vec<Value>>(),
        "cut": chain.is_cut,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(edges: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        let mut leads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            let next = leads.entry((*from).to_owned()).or_default();
            next.insert((*to).to_owned());
        }
        leads
    }

    #[test]
    fn each_circle_is_found_once_and_the_shortest_first() {
        let found = circles(&leads(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("y", "z"),
            ("z", "y"),
            ("start", "a"),
        ]));
        assert_eq!(found, [vec!["y", "z"], vec!["a", "b", "c"]]);
        assert!(circles(&leads(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        assert_eq!(circles(&leads(&[("a", "a")])), [["a"]]);
    }
}
