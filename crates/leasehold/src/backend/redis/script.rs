//! The script that runs a call's operations. It consists of the Lua that steps share, the steps'
//! functions and a loop over the call's operations, and is assembled once. A few steps also have a
//! script of their own, which runs one operation.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::backend::channels::Transport;
use crate::backend::step::{LuaFile, SharedLua, Step};
use crate::sync::Mutex;

/// The scripts, and their parts.
static LUA: LuaFile = LuaFile::new(include_str!("call.lua"));
/// The part that the scripts have only for a client with a failover guard.
const GUARD: &str = include_str!("guard.lua");
/// The placeholder in a step that is not an acquire but may still grant something to another
/// client.
const OR_GUARDED: &str = " --[[OR GUARDED]]";
/// The commands of the guard, and a rule for its key.
const GUARD_COMMANDS: [&str; 4] = ["get", "info", "set", "time"];
pub(super) const GUARD_KEY: &str = "~leasehold:guard";
/// The part that the script has only on a node of a cluster.
const CLUSTER: &str = include_str!("cluster.lua");

/// The commands of a connection that no step contains: its own queries, and the commands that send
/// a call.
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

/// The further commands of a connection to a node of a cluster.
const CLUSTER_CONNECTION: [&str; 5] = [
    "asking",
    "cluster|slots",
    "spublish",
    "ssubscribe",
    "sunsubscribe",
];

/// The kind of server that a script runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Server,
    /// A single server, for a client that gets no holds for `span_ms` after a failover.
    Guarded {
        span_ms: u64,
    },
    /// A node of a cluster. The script publishes by these transports.
    Cluster(&'static [Transport]),
}

impl Form {
    pub(crate) fn is_of_a_cluster(self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the guard's part of a script, if the script must call `guarded` before it grants
    /// something.
    fn guard(self) -> Option<String> {
        let Self::Guarded { span_ms } = self else {
            return None;
        };
        Some(GUARD.replace("--[[SPAN_MS]]", &span_ms.to_string()))
    }
}

/// A script as it is sent, with its hash.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Text {
    fn new(lua: &str) -> Self {
        // The hash must be of the text exactly as it is sent; otherwise no server would know the
        // hash.
        let text = without_comments(lua);
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha }
    }
}

/// The scripts that run a set of steps.
#[derive(Debug)]
pub(crate) struct Script {
    /// The script that runs any of the steps, any number of times.
    pub(crate) any: Text,
    /// The scripts that run one step once.
    own: Vec<(&'static str, Text)>,
    form: Form,
    /// All commands that a user needs, as rules: `+del +get`.
    pub(crate) command_rules: String,
}

impl Script {
    /// Returns all scripts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Text> {
        let own = self.own.iter().map(|(_, text)| text);
        [&self.any].into_iter().chain(own)
    }

    /// Returns whether the script checks a failover guard before it runs this step.
    pub(crate) fn guards(&self, step: &Step) -> bool {
        matches!(self.form, Form::Guarded { .. }) && step.is_guarded()
    }

    /// Returns the script that runs only this step, if there is one.
    pub(crate) fn own(&self, step: &Step) -> Option<&Text> {
        let mut own = self.own.iter();
        own.find_map(|(name, text)| (*name == step.name).then_some(text))
    }

    /// Returns the scripts of these steps. They are assembled once, however many clients connect.
    pub(crate) fn of(steps: &[&Step], form: Form) -> Arc<Self> {
        type ScriptCache = BTreeMap<(Form, Vec<&'static str>), Arc<Script>>;
        static CACHE: Mutex<ScriptCache> = Mutex::new(BTreeMap::new());
        let names = steps.iter().map(|step| step.name).collect();
        let mut made = CACHE.lock();
        let script = made
            .entry((form, names))
            .or_insert_with(|| Arc::new(Self::assemble(steps, form)));
        Arc::clone(script)
    }

    fn assemble(steps: &[&Step], form: Form) -> Self {
        let mut library = Vec::new();
        for step in steps {
            collect(step.uses, &mut library);
        }
        let numbered = steps.iter().enumerate();
        let branches: String = numbered
            .map(|(n, step)| branch(n, step, &library, form))
            .collect();
        let made: Vec<_> = (0..steps.len()).map(|n| format!("made{n}")).collect();
        // The script has no line with flags at its top. With such a line the server would refuse
        // the entire call when it is out of memory, but releases must still run then.
        let text = LUA
            .section("call")
            .replace("--[[SHARED]]", &choice(0..library.len(), &library))
            .replace("--[[MADE]]", &format!("local {}", made.join(", ")))
            .replace("--[[STEPS]]", &branches);
        let text = text.replace("--[[LATE]]", LUA.section("late"));
        let text = match form {
            Form::Server => text,
            Form::Guarded { .. } => text.replace("--[[GUARD]]", &form.guard().unwrap_or_default()),
            Form::Cluster(transports) => for_a_cluster(&text, transports),
        };
        let own = steps
            .iter()
            .filter(|step| step.own_script && !form.is_of_a_cluster());
        Self {
            // Comments are removed last, because the placeholders that are replaced above are
            // comments themselves.
            any: Text::new(&insert_guard_check(&text, form)),
            own: own.map(|step| (step.name, own_text(step, form))).collect(),
            form,
            command_rules: command_rules(steps, form),
        }
    }
}

/// Adds the check of the guard to the steps that may grant something, if there is a guard.
fn insert_guard_check(text: &str, form: Form) -> String {
    let guarded = matches!(form, Form::Guarded { .. });
    text.replace(OR_GUARDED, if guarded { " or guarded()" } else { "" })
}

/// Makes the script of one step.
fn own_text(step: &Step, form: Form) -> Text {
    let late = if step.grants {
        LUA.section("late")
    } else {
        // The step releases something, so it runs however late it arrives.
        "local late = false\n"
    };
    let guard_check = match step.is_guarded() {
        true => "late = late or guarded()\n",
        false => "",
    };
    let guard = form
        .guard()
        .filter(|_| step.is_guarded() || step.lua().contains(OR_GUARDED));
    let guard = guard.map_or(String::new(), |guard| guard + guard_check);
    let keys = (1..=step.keys).map(|n| format!(", KEYS[{n}]"));
    // The arguments follow the call's number and, if the step grants something, its deadline.
    let first = 2 + usize::from(step.grants);
    let arguments = first..first + step.parameters.len() - step.keys;
    let arguments = arguments.map(|n| format!(", ARGV[{n}]"));
    let parameters: String = keys.chain(arguments).collect();
    let text = LUA
        .section("own")
        .replace(
            "--[[CALL]]",
            &format!("{}{parameters}", function_name(step)),
        )
        .replace(
            "--[[STEP]]",
            &with_uses(step.lua(), step.uses, &with_shared),
        )
        .replace("--[[LATE]]", late)
        .replace("--[[GUARD]]", &guard);
    Text::new(&insert_guard_check(&text, form))
}

/// Returns shared Lua, preceded by the Lua that it uses itself, for the script of one step.
fn with_shared(shared: &SharedLua) -> String {
    with_uses(shared.lua(), shared.uses, &with_shared)
}

/// Adds what the script needs on a node of a cluster.
fn for_a_cluster(text: &str, transports: &[Transport]) -> String {
    let publish = match transports {
        [Transport::Global] => "redis.pcall('PUBLISH', channel, message)\n",
        // A server that does not know SPUBLISH refuses it. Clients of such a server listen to the
        // other transport.
        [Transport::Sharded] => {
            "if type(redis.pcall('SPUBLISH', channel, message)) == 'table' then\n\
             redis.pcall('PUBLISH', channel, message)\nend\n"
        }
        _ => {
            "redis.pcall('PUBLISH', channel, message)\n\
             redis.pcall('SPUBLISH', channel, message)\n"
        }
    };
    // The steps are changed before the cluster's part is inserted, because that part itself calls
    // PUBLISH.
    text.replace("redis.pcall('PUBLISH', ", "publish(")
        .replace(
            "local key, arg, n = 1, 3, 2",
            "local key, arg, n = first_key, first_arg, 2",
        )
        .replace("--[[CLUSTER]]", &CLUSTER.replace("--[[PUBLISH]]", publish))
}

/// Adds these sections of shared Lua to `library`, and the sections that they use themselves, each
/// only once.
pub(crate) fn collect(uses: &[&'static SharedLua], library: &mut Vec<&'static SharedLua>) {
    for shared in uses {
        if !library.iter().any(|known| ptr::eq(*known, *shared)) {
            library.push(shared);
            collect(shared.uses, library);
        }
    }
}

/// Returns Lua that finds the shared Lua with the number `which`, by binary search: a comparison
/// costs the server a third as much as creating a function.
fn choice(numbers: Range<usize>, library: &[&SharedLua]) -> String {
    match library[numbers.clone()] {
        [] => String::new(),
        [shared] => {
            let lua = with_uses(shared.lua(), shared.uses, &|used| {
                import_line(used, library)
            });
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

/// Returns the line that gives a step the shared Lua that it uses.
fn import_line(shared: &SharedLua, library: &[&SharedLua]) -> String {
    let number = library.iter().position(|known| ptr::eq(*known, shared));
    let number = number.expect("all was collected");
    let names = names(shared).join(", ");
    format!("local {names} = shared({number}, shared)\n")
}

/// Inserts the Lua that a file uses before the Lua of the file. A function that needs some of it
/// only in a rare case marks the place with a line `--[[USES name]]`, and that Lua is inserted
/// there instead.
fn with_uses(lua: &str, uses: &[&SharedLua], get: &dyn Fn(&SharedLua) -> String) -> String {
    let (mut first, mut lua) = (String::new(), lua.to_owned());
    for shared in uses {
        let rare = own_names(shared).map(|name| format!("--[[USES {name}]]\n"));
        match rare.into_iter().find(|rare| lua.contains(rare)) {
            Some(rare) => lua = lua.replace(&rare, &get(shared)),
            None => first.push_str(&get(shared)),
        }
    }
    first + &lua
}

/// Returns the names of the functions and constants of a file, and of the files that it uses.
fn names(shared: &SharedLua) -> Vec<&'static str> {
    let used = shared.uses.iter().flat_map(|used| names(used));
    used.chain(own_names(shared)).collect()
}

fn own_names(shared: &SharedLua) -> impl Iterator<Item = &'static str> {
    shared.lua().lines().filter_map(|line| {
        let rest = line.strip_prefix("local ")?;
        let rest = rest.strip_prefix("function ").unwrap_or(rest);
        rest.split(['(', ' ']).next()
    })
}

/// Makes one branch of the loop. The branch creates the step's function when the first operation of
/// a call needs it: most calls need two functions, and each costs something to create. Each
/// function has its own local variable (Lua allows 200), because a table would cost more than a
/// function.
fn branch(number: usize, step: &Step, library: &[&SharedLua], form: Form) -> String {
    let word = if number == 0 { "if" } else { "elseif" };
    // A step for many keys checks each key itself. A step without keys runs on this node, whatever
    // slots the node has.
    let checks_slot = form.is_of_a_cluster() && !step.many && step.keys > 0;
    let guarded = form.guard().is_some() && step.is_guarded();
    // A step that releases something runs however late it arrives.
    let unless_late = match (checks_slot, step.grants) {
        (false, true) if guarded => {
            "local closed = late or guarded()\n\
             if closed then reply = closed else"
        }
        (false, true) => "if not late then",
        (false, false) => "do",
        (true, true) => {
            "local away = checks_slot and elsewhere(KEYS[key])\n\
             if away then reply = away elseif not late then"
        }
        (true, false) => {
            "local away = checks_slot and elsewhere(KEYS[key])\n\
             if away then reply = away else"
        }
    };
    let lua = with_uses(step.lua(), step.uses, &|used| import_line(used, library));
    let (name, function) = (step.name, function_name(step));
    if step.many {
        // The name, the count, the argument for all keys, and one argument for each key.
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
    // The first argument of `pcall` is the function itself.
    let first = (step.keys > 0).then(|| ", KEYS[key]".to_owned());
    let keys = (1..step.keys).map(|n| format!(", KEYS[key + {n}]"));
    let args = (1..=arguments).map(|n| format!(", ARGV[arg + {n}]"));
    format!(
        "{word} name == '{name}' then\n\
         {unless_late}\n\
         if not made{number} then\n{lua}made{number} = {function}\nend\n\
         ok, reply = pcall(made{number}{parameters})\n\
         end\n\
         key, arg = key + {keys}, arg + {arguments}\n",
        parameters = first
            .into_iter()
            .chain(keys)
            .chain(args)
            .collect::<String>(),
        keys = step.keys,
        arguments = arguments + 1,
    )
}

/// Returns the name of a step's function: the second part of the step's name. `lock.acquire` is
/// `acquire`.
pub(crate) fn function_name(step: &Step) -> &'static str {
    step.name.rsplit('.').next().unwrap_or(step.name)
}

/// Returns the commands in a step's Lua and in the Lua that it uses. A command may be in it several
/// times.
fn called_commands(step: &Step) -> impl Iterator<Item = &'static str> {
    let mut used = Vec::new();
    collect(step.uses, &mut used);
    let texts = used
        .into_iter()
        .map(|shared| shared.lua())
        .chain([step.lua()]);
    // `redis.pcall('` ends with the same letters, so this finds both.
    let called = texts.flat_map(|lua| lua.split("call('").skip(1));
    called.filter_map(|rest| rest.split('\'').next())
}

/// Returns the commands that a step may run, for the error of a user who is not allowed to run one
/// of them.
pub(crate) fn commands(step: &Step) -> String {
    // The loop of `call.lua` reads the time before such a step.
    let clock = step.grants.then_some("TIME");
    let mut names: Vec<_> = clock.into_iter().chain(called_commands(step)).collect();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

/// Returns the rules that let a user connect and run these steps.
fn command_rules(steps: &[&Step], form: Form) -> String {
    let called = steps.iter().flat_map(|step| called_commands(step));
    let mut names: Vec<_> = called.map(str::to_lowercase).collect();
    names.extend(CONNECTION.map(str::to_owned));
    match form {
        Form::Server => {}
        Form::Guarded { .. } => names.extend(GUARD_COMMANDS.map(str::to_owned)),
        Form::Cluster(_) => names.extend(CLUSTER_CONNECTION.map(str::to_owned)),
    }
    names.sort_unstable();
    names.dedup();
    format!("+{}", names.join(" +"))
}

/// Removes comments and indentation. Only readers of the file need them, but the server would parse
/// them at each load.
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
        for step in crate::recipes::steps() {
            let mut used = Vec::new();
            collect(step.uses, &mut used);
            // All names are locals of one block. Of two locals with the same name, the later one
            // hides the earlier one.
            let names: Vec<_> = used.into_iter().flat_map(own_names).collect();
            let different: BTreeSet<_> = names.iter().collect();
            assert_eq!(names.len(), different.len(), "{}: {names:?}", step.name);
        }
    }

    #[test]
    fn wire_format_page_lists_required_commands() {
        let page = include_str!("../../../../../docs/wire-format.md");
        let words: Vec<_> = page.split_whitespace().collect();
        let steps = crate::recipes::steps();
        let rules = Script::of(&steps, Form::Server).command_rules.clone();
        assert!(words.join(" ").contains(&format!("`{rules}`")), "{rules}");
        let more = CLUSTER_CONNECTION.join(" +");
        assert!(words.join(" ").contains(&format!("`+{more}`")), "{more}");
    }

    #[test]
    fn scripts_without_a_guard_have_nothing_of_it() {
        let steps = crate::recipes::steps();
        let guarded = Script::of(&steps, Form::Guarded { span_ms: 12_345 });
        for form in [Form::Server, Form::Cluster(&[Transport::Global])] {
            let script = Script::of(&steps, form);
            for text in script.texts() {
                assert!(!text.text.to_lowercase().contains("guard"), "{form:?}");
            }
        }
        for text in guarded.texts() {
            assert!(!text.text.contains("--[["), "a mark is left");
        }
        assert!(guarded.any.text.contains("12345"));
        let own = guarded.own(&crate::primitives::lock::steps::ACQUIRE);
        assert!(own.is_some_and(|own| own.text.contains("12345")));
        let own = |script: &Script| {
            let own = script.own(&crate::primitives::lock::steps::RELEASE);
            own.map(|own| own.sha.clone())
        };
        assert_eq!(own(&guarded), own(&Script::of(&steps, Form::Server)));
        // A user who may run the other scripts needs access to only one more key.
        let rules = |form| Script::of(&steps, form).command_rules.clone();
        let form = Form::Guarded { span_ms: 12_345 };
        assert_eq!(rules(form), rules(Form::Server));
        let page = include_str!("../../../../../docs/wire-format.md");
        assert!(page.contains(&format!("`{GUARD_KEY}`")));
    }

    #[test]
    fn script_of_a_server_has_nothing_of_clusters() {
        let steps = crate::recipes::steps();
        let server = &Script::of(&steps, Form::Server).any.text;
        assert!(!server.contains("moving") && !server.contains("SPUBLISH"));
        let cluster = &Script::of(&steps, Form::Cluster(&[Transport::Sharded]))
            .any
            .text;
        // Only the function `publish` itself publishes.
        assert_eq!(cluster.matches("'PUBLISH'").count(), 1);
        assert!(
            !cluster.starts_with("#!"),
            "its keys could not be in several slots"
        );
    }
}
