//! The replies of steps.

use std::str::FromStr;

/// A step's reply. An error text is not a `Value`: it becomes a
/// [`Failure`](super::failure::Failure).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
}

/// An error that the step itself replied. The step ran and changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn wrong_type() -> Self {
        Self("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }
}

/// Reads a number. For any other string, returns the error that Redis gives.
pub(crate) fn number<T: FromStr>(text: &[u8]) -> Result<T, Refusal> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal("ERR value is not an integer or out of range".into()))
}
