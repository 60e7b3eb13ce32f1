//! The one script that runs a call's operations: the steps' functions and the
//! loop over them, put together once per client.

use std::fmt::Write as _;

use crate::backend::step::Step;

const CALL: &str = include_str!("call.lua");

/// The assembled text and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    pub(crate) fn assemble(steps: &[&Step]) -> Self {
        let mut text = String::from("local steps = {}\n");
        for step in steps {
            let function = function_name(step);
            // A scope for each file, so that helpers of one can't meet those of another.
            let _ = write!(
                text,
                "do\n{}\nsteps['{}'] = {{ {function}, {}, {}, {} }}\nend\n",
                without_comments(step.lua),
                step.name,
                step.keys,
                step.args,
                step.grants,
            );
        }
        text.push_str(&without_comments(CALL));
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha }
    }
}

/// The last word of a step's name is its function: `lock.acquire` is `acquire`.
pub(crate) fn function_name(step: &Step) -> &'static str {
    step.name.rsplit('.').next().unwrap_or(step.name)
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
