//! A step: one atomic change with three faces, which are kept together: the Lua function, the
//! keys and arguments that it is sent with, and its twin on the embedded keyspace. The steps
//! themselves are beside their primitives.

use super::memory::Keyspace;

/// One atomic change.
#[derive(Debug)]
pub(crate) struct Step {
    /// Unique: the call's script finds the step by it.
    pub(crate) name: &'static str,
    /// The file: a header and one `local function`.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) lua: &'static str,
    /// How many of the function's parameters are keys; they come first.
    pub(crate) keys: usize,
    /// How many follow them.
    pub(crate) args: usize,
    /// Whether it gives the caller something: a grant, or more time. The server does not run such
    /// a step when its call arrives too late (a grant would be a lock for nobody), and the queue
    /// drops it when nobody waits for it any more.
    #[cfg_attr(not(any(feature = "redis", feature = "testing")), expect(dead_code))]
    pub(crate) grants: bool,
    /// The same change on the embedded keyspace.
    pub(crate) twin: fn(&mut Keyspace, &[Vec<u8>]) -> Result<Value, Refusal>,
}

impl Step {
    /// What the step works on, in words: the first part of its name.
    pub(super) fn kind(&self) -> &'static str {
        match self.name.split('.').next() {
            Some("lock") => "a plain lock",
            Some("fenced") => "a fenced lock",
            Some("fair") => "a fair lock",
            Some("rw") => "a read-write lock",
            Some("group") => "a group of locks",
            Some("semaphore") => "a semaphore",
            Some("expirable") => "a semaphore with leases",
            Some("latch") => "a latch",
            _ => "what was expected",
        }
    }
}

/// A step with its keys and arguments, as they go over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) step: &'static Step,
    pub(crate) parts: Vec<Vec<u8>>,
}

impl Operation {
    pub(crate) fn new(step: &'static Step, parts: Vec<Vec<u8>>) -> Self {
        debug_assert_eq!(parts.len(), step.keys + step.args, "{}", step.name);
        Self { step, parts }
    }
}

/// A step's reply. An error text is not one of them: it is a [`Failure`](super::failure::Failure).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
}

/// An error that the step itself replied: it ran and changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn wrong_type() -> Self {
        Self("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }
}
