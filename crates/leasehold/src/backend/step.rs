//! Steps. A step is one atomic change in three forms: a Lua function, the keys and arguments sent
//! to it, and its twin on the embedded keyspace. Each step is declared once, next to its primitive,
//! with [`step!`].

mod parts;

#[cfg(feature = "redis")]
use std::collections::BTreeMap;
#[cfg(feature = "redis")]
use std::sync::OnceLock;

use super::memory::keyspace::Keyspace;
pub(crate) use super::value::{Refusal, Value, number};
pub(crate) use parts::Parts;

/// One atomic change.
#[derive(Debug)]
pub(crate) struct Step {
    /// The unique name by which the call's script finds the step.
    pub(crate) name: &'static str,
    /// The Lua file of the primitive. The section named like the last word of `name` belongs to the
    /// step. It has a header and one `local function`.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) file: &'static LuaFile,
    /// The Lua that the function shares with other steps.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) uses: &'static [&'static SharedLua],
    /// The function's parameters. The keys are first.
    pub(crate) parameters: &'static [&'static str],
    /// The number of parameters that are keys.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) keys: usize,
    /// Whether the step takes any number of keys. Such a step is sent with its keys, one argument
    /// for all of them, and one argument for each. Its function receives the number of keys and
    /// where they begin in `KEYS` and `ARGV`.
    pub(crate) many: bool,
    /// Whether the step gives the caller something: a grant, or more time. The server does not run
    /// such a step when its call arrives too late, because no client would use the grant. The queue
    /// drops such a step when its waiter has given up.
    #[cfg_attr(not(any(feature = "redis", feature = "testing")), expect(dead_code))]
    pub(crate) grants: bool,
    /// Whether the step gives a client something only in place of what it already has: more time, a
    /// token, other permits, or the same hold in another form. A failover guard lets such a step
    /// run.
    #[cfg_attr(not(any(feature = "redis", test)), expect(dead_code))]
    pub(crate) for_holders: bool,
    /// Whether the step only makes holds last longer. The queue sends such a step before all
    /// others, so that a hold does not expire while thousands of waiters send requests.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) renews: bool,
    /// Whether the step touches only declared keys, and no key again that it may have removed. Such
    /// a step may run while its slot moves from one node of a cluster to another, as soon as all
    /// its keys are on one of the two nodes. Any other step waits until the whole slot has moved.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) while_moving: bool,
    /// Whether the step has its own script, used when it is the only operation of a call to a
    /// single server. Such a call costs the server a fifth less. Every connection loads each of
    /// these scripts, so only steps that are often sent alone have one.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) own_script: bool,
    /// The function that makes the same change on the embedded keyspace.
    pub(crate) twin: fn(&mut Keyspace, &Parts) -> Result<Value, Refusal>,
}

/// Lua that several steps use: a section of local functions and constants. The script contains it
/// once.
#[derive(Debug)]
#[cfg_attr(not(feature = "redis"), expect(dead_code))]
pub(crate) struct SharedLua {
    pub(crate) file: &'static LuaFile,
    pub(crate) section: &'static str,
    /// The Lua that this section itself uses. A step that uses this section can call that Lua too.
    pub(crate) uses: &'static [&'static SharedLua],
}

impl SharedLua {
    pub(crate) const fn new(
        file: &'static LuaFile,
        section: &'static str,
        uses: &'static [&'static SharedLua],
    ) -> Self {
        Self {
            file,
            section,
            uses,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn lua(&self) -> &'static str {
        self.file.section(self.section)
    }
}

/// A Lua file, which consists of sections. A line `-- [name] ---` begins each section.
#[derive(Debug)]
pub(crate) struct LuaFile {
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) text: &'static str,
    /// The sections by name. They are found once, because each script needs many of them.
    #[cfg(feature = "redis")]
    sections: OnceLock<BTreeMap<&'static str, &'static str>>,
}

impl LuaFile {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self {
            text,
            #[cfg(feature = "redis")]
            sections: OnceLock::new(),
        }
    }

    /// Returns the text of a section.
    #[cfg(feature = "redis")]
    pub(crate) fn section(&self, name: &str) -> &'static str {
        let sections = self.sections.get_or_init(|| {
            let sections = self.text.split("\n-- [").skip(1);
            let named = sections.filter_map(|section| {
                let (head, text) = section.split_once('\n')?;
                Some((head.split_once(']')?.0, text))
            });
            named.collect()
        });
        sections
            .get(name)
            .unwrap_or_else(|| panic!("no Lua section `{name}`"))
    }
}

/// Declares a step: a [`Step`], and a struct of its keys and arguments, named as in the Lua. The
/// Lua is the section of the static `LUA` that has the second part of the step's name. A caller
/// fills in the struct and makes an [`Operation`] of it. The step's twin is the method `twin` of
/// the struct, so it reads the same names. An argument without a type is a string.
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
            file: &LUA,
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
                let bytes = 0 $(+ self.$key.max_len())* $(+ self.$arg.max_len())*;
                let mut parts = Parts::with_capacity($STEP.parameters.len(), bytes);
                $(self.$key.write(&mut parts);)*
                $(self.$arg.write(&mut parts);)*
                Operation::of(&$STEP, parts)
            }

            fn read(parts: &'a $crate::backend::step::Parts) -> Result<Self, $crate::backend::step::Refusal> {
                use $crate::backend::step::{Argument, Refusal};
                if parts.len() != $STEP.parameters.len() {
                    return Err(Refusal("ERR wrong number of arguments for a step".into()));
                }
                // There are as many strings as fields.
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

/// A type that an argument can have. On the wire every argument is a string.
pub(crate) trait Argument<'a>: Sized {
    /// Returns an upper limit for the number of bytes in the string.
    fn max_len(&self) -> usize;
    fn write(&self, parts: &mut Parts);
    fn read(text: &'a [u8]) -> Result<Self, Refusal>;
}

impl<'a> Argument<'a> for &'a [u8] {
    fn max_len(&self) -> usize {
        self.len()
    }

    fn write(&self, parts: &mut Parts) {
        parts.push(self);
    }

    fn read(text: &'a [u8]) -> Result<Self, Refusal> {
        Ok(text)
    }
}

/// The length of the longest number: its digits and a sign.
const LONGEST_NUMBER: usize = 20;

impl Argument<'_> for u64 {
    fn max_len(&self) -> usize {
        LONGEST_NUMBER
    }

    fn write(&self, parts: &mut Parts) {
        parts.push_display(self);
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        number(text)
    }
}

impl Argument<'_> for i64 {
    fn max_len(&self) -> usize {
        LONGEST_NUMBER
    }

    fn write(&self, parts: &mut Parts) {
        parts.push_display(self);
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        number(text)
    }
}

/// A bool is sent as 1 or 0.
impl Argument<'_> for bool {
    fn max_len(&self) -> usize {
        1
    }

    fn write(&self, parts: &mut Parts) {
        parts.push(if *self { b"1" } else { b"0" });
    }

    fn read(text: &[u8]) -> Result<Self, Refusal> {
        // The string itself is compared, as in the scripts: in Lua the string `0` would be true.
        Ok(text == b"1")
    }
}

impl Step {
    /// Returns the Lua of the step.
    #[cfg(feature = "redis")]
    pub(crate) fn lua(&self) -> &'static str {
        let section = self.name.rsplit('.').next().unwrap_or_default();
        self.file.section(section)
    }

    /// Returns whether a failover guard may keep this step from running. A step that grants
    /// something counts as an acquire unless it is declared `for_holders`.
    #[cfg(feature = "redis")]
    pub(crate) fn is_guarded(&self) -> bool {
        self.grants && !self.for_holders
    }

    /// Returns the kind of primitive that the step works on, for errors. The first part of the
    /// step's name determines it.
    pub(super) fn kind(&self) -> &'static str {
        match self.name.split('.').next() {
            Some("lock") => "a plain lock",
            Some("fenced" | "election") => "a fenced lock",
            Some("fair") => "a fair lock",
            Some("rw") => "a read-write lock",
            Some("group") => "a group lock",
            Some("semaphore") => "a semaphore",
            Some("expirable") => "a semaphore with leases",
            Some("latch") => "a latch",
            Some("slot") => "a plain lock with these slots",
            _ => "what was expected",
        }
    }
}

/// A step with its keys and arguments, as they are sent.
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

    /// Returns the parts that are not keys.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().skip(self.key_count())
    }

    /// Returns the name that the operation is about, from which all its keys are derived. `None` if
    /// the operation is about many names, or about none.
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
