//! `leasehold completions`: prints the scripts that clap makes. For some shells, it adds functions
//! that complete the names on the server and the command of `leasehold run`. `leasehold complete`
//! prints the names.

use std::time::Duration;

use clap::{Command, ValueHint};
use clap_complete::Shell;

use super::pages::visible;
use crate::cli::{self, Names};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;
use crate::server::Server;

/// The values of `--on-loss`, without `exec CMD`, which a shell would complete as two words.
const ON_LOSS: [&str; 3] = ["term", "kill", "warn"];

/// The longest time that a shell waits for the names.
const LIMIT: Duration = Duration::from_secs(1);

/// The maximum number of names to print. A longer list would not help a user.
const MOST_NAMES: usize = 200;

pub(crate) async fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut command = hinted(visible(&cli::command())).mut_subcommand("run", |run| {
        run.mut_arg("on_loss", |on_loss| on_loss.value_parser(ON_LOSS))
            .mut_arg("line", |line| line.value_hint(ValueHint::CommandString))
            .mut_arg("command", |command| {
                command.value_hint(ValueHint::CommandWithArguments)
            })
    });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "leasehold", &mut script);
    let script = with_names(shell, &String::from_utf8_lossy(&script));
    output::result(script.trim_end()).await?;
    Ok(Exit::Success)
}

/// Marks each argument that is the name of a lock. The mark is clap's hint for the name of a user,
/// which no other argument uses.
fn hinted(command: Command) -> Command {
    let below = command.get_subcommands().map(|below| below.get_name());
    let below: Vec<_> = below.map(str::to_owned).collect();
    let command = command.mut_args(|one| match one.get_id() == "name" {
        true => one.value_hint(ValueHint::Username),
        false => one,
    });
    below.iter().fold(command, |command, name| {
        command.mut_subcommand(name, hinted)
    })
}

/// Adds the functions of this shell to the script.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            let functions = include_str!("completions/names.bash");
            let script = script.replace("complete -F _leasehold ", "complete -F _leasehold_words ");
            format!("{functions}\n{script}")
        }
        Shell::Zsh => {
            let functions = include_str!("completions/names.zsh");
            let script = script.replace(":_users'", ":_leasehold_names'");
            // Rename clap's function: the shell calls `_leasehold`, which is now among the added
            // functions.
            let script = script.replacen("\n_leasehold() {", "\n_leasehold_options() {", 1);
            // Insert the functions before the last lines, which call one of them. The first line
            // must stay first, because the shell reads it.
            let last = "if [ \"$funcstack[1]\" = \"_leasehold\" ]; then";
            script.replace(last, &format!("{functions}\n{last}"))
        }
        Shell::Fish => format!("{script}\n{}", include_str!("completions/names.fish")),
        _ => script.to_owned(),
    }
}

/// Prints the names that begin with the word at the cursor.
pub(crate) async fn names(args: Names, server: Server) -> Result<Exit, Failure> {
    let listed = tokio::time::timeout(LIMIT, list(&args.begun, server)).await;
    listed.unwrap_or(Ok(Exit::Success))
}

async fn list(begun: &str, server: Server) -> Result<Exit, Failure> {
    let client = server.connect(None).await?;
    let mut names = client.list(pattern(begun));
    let mut left = MOST_NAMES;
    while left > 0
        && let Some(listed) = names.next().await
    {
        let name = listed?.name;
        if name.contains(char::is_control) {
            continue;
        }
        left -= 1;
        if !output::more(name).await? {
            break;
        }
    }
    Ok(Exit::Success)
}

/// Returns the pattern that matches each text with this beginning.
fn pattern(begun: &str) -> String {
    let mut pattern = String::new();
    for letter in begun.chars() {
        if "*?[]\\".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_the_beginning_literally() {
        assert_eq!(pattern("a[1]*?\\"), r"a\[1\]\*\?\\*");
        assert_eq!(pattern(""), "*");
    }
}
