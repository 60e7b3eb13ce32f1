//! The one script that runs a call's operations: the steps' functions and the
//! loop over them, put together once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::step::Step;

const CALL: &str = include_str!("call.lua");

/// The assembled text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    /// The script of these steps. Put together once, however many clients connect.
    pub(crate) fn of(steps: &[&Step]) -> Arc<Self> {
        static MADE: Mutex<BTreeMap<Vec<&'static str>, Arc<Script>>> = Mutex::new(BTreeMap::new());
        let names = steps.iter().map(|step| step.name).collect();
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let script = made
            .entry(names)
            .or_insert_with(|| Arc::new(Self::assemble(steps)));
        Arc::clone(script)
    }

    fn assemble(steps: &[&Step]) -> Self {
        let (before, after) = CALL
            .split_once("--[[STEPS]]")
            .expect("call.lua has a place for the steps");
        let mut text = without_comments(before);
        for (number, step) in steps.iter().enumerate() {
            branch(&mut text, number, step);
        }
        text.push_str(&without_comments(after));
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha }
    }
}

/// One branch of the loop. The function is made when the first operation of a call
/// needs it: most calls need two of them, and making one is not free.
fn branch(text: &mut String, number: usize, step: &Step) {
    let keys = (0..step.keys).map(|n| format!(", KEYS[key + {n}]"));
    let args = (1..=step.args).map(|n| format!(", ARGV[arg + {n}]"));
    let parameters: String = keys.chain(args).collect();
    let word = if number == 0 { "if" } else { "elseif" };
    let unless_late = if step.grants {
        "if not late then"
    } else {
        "do"
    };
    let _ = write!(
        text,
        "{word} name == '{name}' then\n\
         {unless_late}\n\
         if not made[{number}] then\n{lua}made[{number}] = {function}\nend\n\
         ok, reply = pcall(made[{number}]{parameters})\n\
         end\n\
         key = key + {keys}\narg = arg + {arguments}\n",
        name = step.name,
        lua = without_comments(step.lua),
        function = function_name(step),
        keys = step.keys,
        arguments = step.args + 1,
    );
}

/// The last word of a step's name is its function: `lock.acquire` is `acquire`.
pub(crate) fn function_name(step: &Step) -> &'static str {
    step.name.rsplit('.').next().unwrap_or(step.name)
}

/// The commands that a step may run, for a user who lacks one of them.
pub(crate) fn commands(step: &Step) -> String {
    let clock = step.grants.then_some("TIME");
    let called = step.lua.split("call('").skip(1);
    let called = called.filter_map(|rest| rest.split('\'').next());
    let mut names: Vec<_> = clock.into_iter().chain(called).collect();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

/// Comments are for the reader of the file; the server parses the text at each load.
fn without_comments(lua: &str) -> String {
    lua.lines()
        .filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty())
        .fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
}
