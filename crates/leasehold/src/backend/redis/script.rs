//! The one script that runs a call's operations: the steps' functions and the loop over them,
//! assembled once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::backend::step::Step;
use crate::sync::Mutex;

const CALL: &str = include_str!("call.lua");

/// The commands of a connection that are in no step: its own questions, and those that send a
/// call.
const CONNECTION: [&str; 9] = [
    "eval",
    "evalsha",
    "info",
    "ping",
    "script|load",
    "select",
    "subscribe",
    "time",
    "unsubscribe",
];

/// The assembled text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
    /// All commands that a user needs, as rules: `+del +get`.
    pub(crate) command_rules: String,
}

impl Script {
    /// The script of these steps. Assembled once, however many clients connect.
    pub(crate) fn of(steps: &[&Step]) -> Arc<Self> {
        static MADE: Mutex<BTreeMap<Vec<&'static str>, Arc<Script>>> = Mutex::new(BTreeMap::new());
        let names = steps.iter().map(|step| step.name).collect();
        let mut made = MADE.lock();
        let script = made
            .entry(names)
            .or_insert_with(|| Arc::new(Self::assemble(steps)));
        Arc::clone(script)
    }

    fn assemble(steps: &[&Step]) -> Self {
        let (before, after) = CALL
            .split_once("--[[STEPS]]")
            .expect("call.lua has a place for the steps");
        // No line with flags at the top: with one the server refuses the whole call when it is
        // out of memory, and releases have to run then.
        let mut text = without_comments(before);
        for (number, step) in steps.iter().enumerate() {
            branch(&mut text, number, step);
        }
        text.push_str(&without_comments(after));
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self {
            text,
            sha,
            command_rules: command_rules(steps),
        }
    }
}

/// One branch of the loop. It makes the step's function when the first operation of a call needs
/// it: most calls need two of them, and making one is not free.
fn branch(text: &mut String, number: usize, step: &Step) {
    let keys = (0..step.keys).map(|n| format!(", KEYS[key + {n}]"));
    let args = (1..=step.args).map(|n| format!(", ARGV[arg + {n}]"));
    let parameters: String = keys.chain(args).collect();
    let word = if number == 0 { "if" } else { "elseif" };
    // A step that gives something back runs whenever it arrives.
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

/// The commands in a step's text, each as often as it is in it.
fn called(step: &Step) -> impl Iterator<Item = &'static str> {
    let called = step.lua.split("call('").skip(1);
    called.filter_map(|rest| rest.split('\'').next())
}

/// The commands that a step may run, for a user who lacks one of them.
pub(crate) fn commands(step: &Step) -> String {
    // The loop of `call.lua` asks for the time before such a step.
    let clock = step.grants.then_some("TIME");
    let mut names: Vec<_> = clock.into_iter().chain(called(step)).collect();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

/// The rules that let a user run these steps, and connect.
fn command_rules(steps: &[&Step]) -> String {
    let called = steps.iter().flat_map(|step| called(step));
    let mut names: Vec<_> = called.map(str::to_lowercase).collect();
    names.extend(CONNECTION.map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    format!("+{}", names.join(" +"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_the_commands_that_a_user_needs() {
        let page = include_str!("../../../../../docs/wire-format.md");
        let words: Vec<_> = page.split_whitespace().collect();
        let rules = Script::of(&crate::primitives::steps())
            .command_rules
            .clone();
        assert!(words.join(" ").contains(&format!("`{rules}`")), "{rules}");
    }
}
