//! The one script that runs a call's operations: what the steps share, the steps' functions and
//! the loop over them, assembled once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::backend::step::{Shared, Step};
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
        let mut library = Vec::new();
        for step in steps {
            collect(step.uses, &mut library);
        }
        let numbered = steps.iter().enumerate();
        let branches: String = numbered
            .map(|(n, step)| branch(n, step, &library))
            .collect();
        let made: Vec<_> = (0..steps.len()).map(|n| format!("made{n}")).collect();
        // No line with flags at the top: with one the server refuses the whole call when it is
        // out of memory, and releases have to run then.
        let text = CALL
            .replace("--[[SHARED]]", &choice(0..library.len(), &library))
            .replace("--[[MADE]]", &format!("local {}", made.join(", ")))
            .replace("--[[STEPS]]", &branches);
        // Last, because the marks that are replaced above are comments themselves. The hash is that
        // of the text as it is sent, or no server would know it.
        let text = without_comments(&text);
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self {
            text,
            sha,
            command_rules: command_rules(steps),
        }
    }
}

/// Adds what is used, and what that uses itself, each once.
fn collect(uses: &[&'static Shared], library: &mut Vec<&'static Shared>) {
    for shared in uses {
        if !library.iter().any(|known| ptr::eq(*known, *shared)) {
            library.push(shared);
            collect(shared.uses, library);
        }
    }
}

/// Makes the one of these that is wanted. It halves them with each question, because a question
/// costs the server as much as a third of a function.
fn choice(numbers: Range<usize>, library: &[&Shared]) -> String {
    match library[numbers.clone()] {
        [] => String::new(),
        [shared] => {
            let lua = with_uses(shared.lua, shared.uses, library);
            format!("{lua}return {}\n", names(shared).join(", "))
        }
        _ => {
            let middle = numbers.start.midpoint(numbers.end);
            format!(
                "if which < {middle} then\n{}else\n{}end\n",
                choice(numbers.start..middle, library),
                choice(middle..numbers.end, library),
            )
        }
    }
}

/// A file behind the lines by which it gets what it uses. A function that needs something in a
/// rare case says so there with a line `--[[USES name]]`, and gets it only then.
fn with_uses(lua: &str, uses: &[&Shared], library: &[&Shared]) -> String {
    let (mut first, mut lua) = (String::new(), lua.to_owned());
    for shared in uses {
        let number = library.iter().position(|known| ptr::eq(*known, *shared));
        let number = number.expect("all was collected");
        let line = format!(
            "local {} = shared({number}, shared)\n",
            names(shared).join(", ")
        );
        let rare = own_names(shared).map(|name| format!("--[[USES {name}]]\n"));
        match rare.into_iter().find(|rare| lua.contains(rare)) {
            Some(rare) => lua = lua.replace(&rare, &line),
            None => first.push_str(&line),
        }
    }
    first + &lua
}

/// The functions and constants of a file, and of those that it uses.
fn names(shared: &Shared) -> Vec<&'static str> {
    let used = shared.uses.iter().flat_map(|used| names(used));
    used.chain(own_names(shared)).collect()
}

fn own_names(shared: &Shared) -> impl Iterator<Item = &'static str> {
    shared.lua.lines().filter_map(|line| {
        let rest = line.strip_prefix("local ")?;
        let rest = rest.strip_prefix("function ").unwrap_or(rest);
        rest.split(['(', ' ']).next()
    })
}

/// One branch of the loop. It makes the step's function when the first operation of a call needs
/// it: most calls need two of them, and making one is not free. It is kept in a local variable of
/// its own, of which Lua has 200: a table for them costs more than a function.
fn branch(number: usize, step: &Step, library: &[&Shared]) -> String {
    let word = if number == 0 { "if" } else { "elseif" };
    // A step that gives something back runs whenever it arrives.
    let unless_late = if step.grants {
        "if not late then"
    } else {
        "do"
    };
    let lua = with_uses(step.lua, step.uses, library);
    let (name, function) = (step.name, function_name(step));
    if step.many {
        // The name, the count, the argument for all, and one for each key.
        return format!(
            "{word} name == '{name}' then\n\
             local count = tonumber(ARGV[arg + 1])\n\
             {unless_late}\n\
             if not made{number} then\n{lua}made{number} = {function}\nend\n\
             ok, reply = pcall(made{number}, count, key, arg + 2)\n\
             end\n\
             key, arg = key + count, arg + 3 + count\n",
        );
    }
    let arguments = step.parameters.len() - step.keys;
    let keys = (1..step.keys).map(|n| format!(", KEYS[key + {n}]"));
    let args = (1..=arguments).map(|n| format!(", ARGV[arg + {n}]"));
    format!(
        "{word} name == '{name}' then\n\
         {unless_late}\n\
         if not made{number} then\n{lua}made{number} = {function}\nend\n\
         ok, reply = pcall(made{number}, KEYS[key]{parameters})\n\
         end\n\
         key, arg = key + {keys}, arg + {arguments}\n",
        parameters = keys.chain(args).collect::<String>(),
        keys = step.keys,
        arguments = arguments + 1,
    )
}

/// The last word of a step's name is its function: `lock.acquire` is `acquire`.
pub(crate) fn function_name(step: &Step) -> &'static str {
    step.name.rsplit('.').next().unwrap_or(step.name)
}

/// The commands in a step's text and in what it uses, each as often as it is in it.
fn called(step: &Step) -> impl Iterator<Item = &'static str> {
    let mut used = Vec::new();
    collect(step.uses, &mut used);
    let texts = used.into_iter().map(|shared| shared.lua).chain([step.lua]);
    // `redis.pcall('` ends with the same letters, so this finds both.
    let called = texts.flat_map(|lua| lua.split("call('").skip(1));
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

/// Comments and indents are for the reader of the file; the server parses the text at each load.
fn without_comments(lua: &str) -> String {
    lua.lines()
        .map(str::trim_start)
        .filter(|line| !line.starts_with("--") && !line.is_empty())
        .fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shared_lua_names_are_unique_per_step() {
        for step in crate::primitives::steps() {
            let mut used = Vec::new();
            collect(step.uses, &mut used);
            // All of them are locals of one block, where the later of two with one name hides the
            // earlier.
            let names: Vec<_> = used.into_iter().flat_map(own_names).collect();
            let different: BTreeSet<_> = names.iter().collect();
            assert_eq!(names.len(), different.len(), "{}: {names:?}", step.name);
        }
    }

    #[test]
    fn wire_format_page_lists_required_commands() {
        let page = include_str!("../../../../../docs/wire-format.md");
        let words: Vec<_> = page.split_whitespace().collect();
        let rules = Script::of(&crate::primitives::steps())
            .command_rules
            .clone();
        assert!(words.join(" ").contains(&format!("`{rules}`")), "{rules}");
    }
}
