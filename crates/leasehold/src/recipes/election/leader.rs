//! The leader, as the server describes it.

use std::time::{Duration, SystemTime};

use crate::backend::step::Value;
use crate::context::Context;
use crate::operate::presence;

/// The leader of an election: see [`Election::leader`](super::Election::leader).
///
/// This is information for routing and for operators. It may be out of date when it arrives, so
/// don't use it as a permission to write: use [`Term::token`](super::Term::token) for that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The id of the leader's hold, `uuid:n`. Each term has a different id, except for a term of a
    /// Java client.
    pub id: String,
    /// The label of the leader's client. `None` for a Java client, and for a client that has not
    /// announced itself: see [`ClientBuilder::presence`](crate::ClientBuilder::presence).
    pub label: Option<String>,
    /// The machine of the leader's client. `None` if the client has not announced itself.
    pub host: Option<String>,
    /// The string that the candidate has set: [`Election::payload`](super::Election::payload).
    /// `None` for a holder that is not a candidate of this library, such as a Java client.
    pub payload: Option<String>,
    /// The fencing token of the term. `None` for a holder that is not a candidate of this library.
    pub token: Option<u64>,
    /// The start of the term, on the server's clock. `None` for a holder that is not a candidate of
    /// this library.
    pub since: Option<SystemTime>,
}

/// The server's reply to a request for the leader.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The remaining time of the leader's lease, if it has one.
    pub(super) ttl: Option<Duration>,
    leader: Option<Leader>,
    /// The last token of a holder without an entry. The id of a Java thread does not change from
    /// term to term, but the token does.
    last: Vec<u8>,
}

impl Seen {
    pub(super) fn no_leader() -> Self {
        Self {
            ttl: None,
            leader: None,
            last: Vec::new(),
        }
    }

    pub(super) fn read(reply: Value) -> Option<Self> {
        let Value::List(items) = reply else {
            return None;
        };
        let ttl = match items.first()? {
            Value::Int(-2) => return Some(Self::no_leader()),
            Value::Int(ttl_ms) => u64::try_from(*ttl_ms).ok().map(Duration::from_millis),
            _ => return None,
        };
        let text = |value: &Value| match value {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        let texts = items[1..].iter().map(text).collect::<Option<Vec<_>>>()?;
        let mut leader = Leader {
            id: texts.first()?.clone(),
            label: None,
            host: None,
            payload: None,
            token: None,
            since: None,
        };
        let mut last = Vec::new();
        match &texts[1..] {
            [token, payload, since_ms] => {
                leader.payload = Some(payload.clone());
                leader.token = token.parse().ok();
                let since = since_ms.parse().ok().map(Duration::from_millis);
                leader.since = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            }
            [counter] => last = counter.clone().into_bytes(),
            _ => return None,
        }
        Some(Self {
            ttl,
            leader: Some(leader),
            last,
        })
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.leader.as_ref()?.token
    }

    /// Returns whether both replies show the same term, or neither shows a leader.
    pub(super) fn is_same_term(&self, other: &Self) -> bool {
        let term = |seen: &Self| {
            let leader = seen.leader.as_ref()?;
            Some((leader.id.clone(), leader.token, seen.last.clone()))
        };
        term(self) == term(other)
    }

    /// Returns the leader, with what its client has announced.
    pub(super) async fn describe(self, context: &Context) -> Option<Leader> {
        let mut leader = self.leader?;
        if let Some(client) = presence::client_of(context, &leader.id).await {
            leader.label = Some(client.label);
            leader.host = Some(client.host);
        }
        Some(leader)
    }
}
