//! A step: one atomic change with three faces, which are kept together: the Lua function, the
//! keys and arguments that it is sent with, and its twin on the embedded keyspace. The steps
//! themselves are beside their primitives, each declared once with [`step!`].

mod parts;

use std::str::FromStr;

use super::memory::Keyspace;
pub(crate) use parts::Parts;

/// One atomic change.
#[derive(Debug)]
pub(crate) struct Step {
    /// Unique: the call's script finds the step by it.
    pub(crate) name: &'static str,
    /// The file: a header and one `local function`.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) lua: &'static str,
    /// What the function calls that other steps call as well.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) uses: &'static [&'static Shared],
    /// The function's parameters. Those that are keys come first.
    pub(crate) parameters: &'static [&'static str],
    /// How many of them are keys.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) keys: usize,
    /// It is sent with as many keys as one likes, then an argument for all of them, then one for
    /// each. Its function gets their count and where they begin in `KEYS` and `ARGV`.
    pub(crate) many: bool,
    /// Whether it gives the caller something: a grant, or more time. The server does not run such
    /// a step when its call arrives too late (a grant would be a lock for nobody), and the queue
    /// drops it when nobody waits for it any more.
    #[cfg_attr(not(any(feature = "redis", feature = "testing")), expect(dead_code))]
    pub(crate) grants: bool,
    /// What it gives, it gives to those alone who hold already, instead of what they hold: more time,
    /// a token, the same hold in another form. A failover guard lets such a step run.
    #[cfg_attr(not(any(feature = "redis", test)), expect(dead_code))]
    pub(crate) for_holders: bool,
    /// It only makes holds last longer. It leaves before all that waits for the connection: a hold must
    /// not end because thousands of waiters ask.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) renews: bool,
    /// It touches only keys that are declared, and none that it may have removed before. Then it may
    /// run while its slot moves from one node of a cluster to another, as soon as all of them are on
    /// one side. Any other step waits until the slot is whole.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) while_moving: bool,
    /// It has a script of its own on a single server, for when it travels alone: that costs the
    /// server a fifth less. Each is loaded with each connection, so only those that often travel
    /// alone have one.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) own_script: bool,
    /// The same change on the embedded keyspace.
    pub(crate) twin: fn(&mut Keyspace, &Parts) -> Result<Value, Refusal>,
}

/// Lua that several steps use: a file of local functions and constants. The script has it once.
#[derive(Debug)]
#[cfg_attr(not(feature = "redis"), expect(dead_code))]
pub(crate) struct Shared {
    pub(crate) lua: &'static str,
    /// What it uses itself. A step that uses this one can call that too.
    pub(crate) uses: &'static [&'static Shared],
}

impl Shared {
    pub(crate) const fn new(lua: &'static str, uses: &'static [&'static Shared]) -> Self {
        Self { lua, uses }
    }
}

/// Declares a step, whose file is called like the last word of its name: a [`Step`], and a struct
/// of its keys and arguments with the names that they have in the file. Who sends the step fills
/// the struct in and makes an [`Operation`] of it. The step's twin is the method `twin` of the
/// struct, so it reads the same names. An argument without a type is text.
macro_rules! step {
    (
        $STEP:ident: $Arguments:ident = $family:ident.$function:ident, grants: $grants:literal,
        $(for_holders: $for_holders:literal,)?
        $(renews: $renews:literal,)?
        $(while_moving: $while_moving:literal,)?
        $(own_script: $own_script:literal,)?
        keys: [$($key:ident),*],
        args: [$($arg:ident $(: $kind:ty)?),*],
        $(uses: [$($shared:path),+],)?
    ) => {
        pub(crate) static $STEP: $crate::backend::step::Step = $crate::backend::step::Step {
            name: concat!(stringify!($family), ".", stringify!($function)),
            lua: include_str!(concat!(stringify!($function), ".lua")),
            uses: &[$($(&$shared),+)?],
            parameters: &[$(stringify!($key),)* $(stringify!($arg)),*],
            keys: <[&str]>::len(&[$(stringify!($key)),*]),
            many: false,
            grants: $grants,
            for_holders: false $(|| $for_holders)?,
            renews: false $(|| $renews)?,
            while_moving: false $(|| $while_moving)?,
            own_script: false $(|| $own_script)?,
            twin: |keyspace, parts| $Arguments::read(parts)?.twin(keyspace),
        };

        pub(crate) struct $Arguments<'a> {
            $(pub(crate) $key: &'a [u8],)*
            $(pub(crate) $arg: $crate::backend::step::step!(@kind 'a $($kind)?),)*
        }

        impl<'a> $Arguments<'a> {
            pub(crate) fn operation(&self) -> $crate::backend::step::Operation {
                use $crate::backend::step::{Argument as _, Operation, Parts};
                let bytes = 0 $(+ self.$key.room())* $(+ self.$arg.room())*;
                let mut parts = Parts::with_room($STEP.parameters.len(), bytes);
                $(self.$key.write(&mut parts);)*
                $(self.$arg.write(&mut parts);)*
                Operation::of(&$STEP, parts)
            }

            fn read(parts: &'a $crate::backend::step::Parts) -> Result<Self, $crate::backend::step::Refusal> {
                use $crate::backend::step::{Argument, Refusal};
                if parts.len() != $STEP.parameters.len() {
                    return Err(Refusal("ERR wrong number of arguments for a step".into()));
                }
                // As many as there are fields.
                let mut texts = parts.iter();
                let mut next = || texts.next().unwrap_or_default();
                Ok(Self {
                    $($key: Argument::read(next())?,)*
                    $($arg: Argument::read(next())?),*
                })
            }
        }
    };
    (@kind $a:lifetime) => { &$a [u8] };
    (@kind $a:lifetime $kind:ty) => { $kind };
}
pub(crate) use step;

/// What an argument can be. On the wire all are texts.
pub(crate) trait Argument<'a>: Sized {
    /// At most so many bytes.
    fn room(&self) -> usize;
    fn write(&self, parts: &mut Parts);
    fn read(text: &'a [u8]) -> Result<Self, Refusal>;
}

impl<'a> Argument<'a> for &'a [u8] {
    fn room(&self) -> usize {
        self.len()
    }

    fn write(&self, parts: &mut Parts) {
        parts.push(self);
    }

    fn read(text: &'a [u8]) -> Result<Self, Refusal> {
        Ok(text)
    }
}

/// The digits of the longest number, and its sign.
const LONGEST_NUMBER: usize = 20;

impl Argument<'_> for u64 {
    fn room(&self) -> usize {
        LONGEST_NUMBER
    }

    fn write(&self, parts: &mut Parts) {
        parts.push_shown(self);
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        number(text)
    }
}

impl Argument<'_> for i64 {
    fn room(&self) -> usize {
        LONGEST_NUMBER
    }

    fn write(&self, parts: &mut Parts) {
        parts.push_shown(self);
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        number(text)
    }
}

/// 1 or 0.
impl Argument<'_> for bool {
    fn room(&self) -> usize {
        1
    }

    fn write(&self, parts: &mut Parts) {
        parts.push(if *self { b"1" } else { b"0" });
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        // As Lua compares it: there the text `0` is true, so the scripts look at the text.
        Ok(text == b"1")
    }
}

/// Reads a number. For other texts it gives the error that Redis gives.
pub(crate) fn number<T: FromStr>(text: &[u8]) -> Result<T, Refusal> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal("ERR value is not an integer or out of range".into()))
}

impl Step {
    /// Whether a failover guard keeps it from running. A step that grants something is taken for an
    /// acquire unless it says otherwise.
    #[cfg(feature = "redis")]
    pub(crate) fn is_guarded(&self) -> bool {
        self.grants && !self.for_holders
    }

    /// What the step works on, in words: the first part of its name.
    pub(super) fn kind(&self) -> &'static str {
        match self.name.split('.').next() {
            Some("lock") => "a plain lock",
            Some("fenced") => "a fenced lock",
            Some("fair") => "a fair lock",
            Some("rw") => "a read-write lock",
            Some("group") => "a group lock",
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
    pub(crate) parts: Parts,
}

impl Operation {
    pub(crate) fn of(step: &'static Step, parts: Parts) -> Self {
        debug_assert!(
            if step.many {
                parts.len() % 2 == 1
            } else {
                parts.len() == step.parameters.len()
            },
            "{}",
            step.name
        );
        Self { step, parts }
    }

    #[cfg(test)]
    pub(crate) fn new<T: AsRef<[u8]>>(
        step: &'static Step,
        parts: impl IntoIterator<Item = T>,
    ) -> Self {
        Self::of(step, parts.into_iter().collect())
    }
}

#[cfg(feature = "redis")]
impl Operation {
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().take(self.key_count())
    }

    /// Those that are no keys.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().skip(self.key_count())
    }

    /// The name that the operation is about: all its keys are derived from that. `None` if it is
    /// about many names, or about none.
    pub(crate) fn name(&self) -> Option<&[u8]> {
        let has_one = !self.step.many && self.step.keys > 0;
        has_one.then(|| self.parts.first())
    }

    pub(crate) fn key_count(&self) -> usize {
        match self.step.many {
            true => self.parts.len() / 2,
            false => self.step.keys,
        }
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
