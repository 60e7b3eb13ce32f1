//! Parsing of the command line, and its error messages.

mod at_name;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use clap::FromArgMatches as _;

use crate::cli::{self, Cli, Command};
use crate::cmd::pages;
use crate::exit_code::Exit;
use crate::output::{Shown, tell};

/// Parses the command line. On failure, the error has already been printed.
pub(crate) fn parse() -> Result<Cli, Exit> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let [_, complete, dashes, line @ ..] = &words[..]
        && complete == "complete"
        && dashes == "--"
    {
        // If no name belongs at this place of the line, print no names.
        words = at_name::listing(&cli::command(), line).ok_or(Exit::Success)?;
    }
    if let [_, help, topic] = &words[..]
        && help == "help"
        && let Some(text) = topic.to_str().and_then(pages::topic)
    {
        // A closed stdout is the reader's choice, not an error.
        let _ = writeln!(std::io::stdout(), "{text}");
        return Err(Exit::Success);
    }
    let cli = parsed(&words);
    let misplaced = match &cli {
        Ok(Cli {
            command: Command::Run(args),
            ..
        }) => !args.misplaced.is_empty(),
        Ok(_) => return cli.map_err(|_| Exit::Usage),
        Err(error) if !error.use_stderr() => {
            // Help or version. A closed stdout is the reader's choice, not an error.
            let _ = error.print();
            return Err(Exit::Success);
        }
        Err(_) => true,
    };
    if let Some(right) = misplaced.then(|| with_dashes(&words)).flatten() {
        tell(format_args!(
            "the command to run belongs after --: {}",
            command_line(&right)
        ));
        return Err(Exit::Usage);
    }
    match cli {
        Ok(cli) if !misplaced => Ok(cli),
        Ok(_) => {
            tell("the command to run belongs after --: leasehold run NAME -- CMD");
            Err(Exit::Usage)
        }
        Err(error) => {
            tell(without_secrets(error.to_string().trim_end(), &words));
            Err(Exit::Usage)
        }
    }
}

fn parsed(words: &[OsString]) -> clap::error::Result<Cli> {
    let mut matches = cli::command().try_get_matches_from(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut cli::command()))
}

/// Returns the words with the missing `--` between name and command. `None` if a missing `--` is
/// not the error.
fn with_dashes(words: &[OsString]) -> Option<Vec<OsString>> {
    if words.iter().any(|word| word == "--") {
        return None;
    }
    let root = cli::command();
    let run = root.find_subcommand("run")?;
    let mut places = Vec::new();
    let mut words_left = words.iter().enumerate().skip(1);
    while let Some((place, word)) = words_left.next() {
        if at_name::option_before_value(&[&root, run], word).is_some() {
            words_left.next();
        } else if !word.to_string_lossy().starts_with('-') {
            places.push(place);
        }
    }
    let [sub_command, _name, command, ..] = places[..] else {
        return None;
    };
    if words[sub_command] != "run" {
        return None;
    }
    let mut right = words.to_vec();
    right.insert(command, "--".into());
    right[0] = "leasehold".into();
    Some(right)
}

/// Formats words as a shell command, without anything that may be a password.
pub(crate) fn command_line(words: &[OsString]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let word = match secret_of(&word) {
        Some((secret, shown)) => word.replace(secret, shown),
        None => word.into_owned(),
    };
    let plain = |letter: char| letter.is_alphanumeric() || "-_./=:,+%@…".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word
    } else {
        Shown(&format!("'{}'", word.replace('\'', "'\\''"))).to_string()
    }
}

/// Returns the parser's error message without secrets. The parser repeats words of the command
/// line, which may contain a URL with a password in the wrong place.
fn without_secrets(text: &str, words: &[OsString]) -> String {
    let mut text = text.strip_prefix("error: ").unwrap_or(text).to_owned();
    for word in words {
        let word = word.to_string_lossy();
        if let Some((secret, shown)) = secret_of(&word) {
            text = text.replace(secret, shown);
        }
    }
    text.chars()
        .map(|letter| match letter {
            '\n' => letter.to_string(),
            _ if letter.is_control() => letter.escape_debug().to_string(),
            _ => letter.to_string(),
        })
        .collect()
}

/// Finds the secret part of a word that looks like a URL or like credentials. Returns this part and
/// the text that replaces it. The part includes its delimiter, so that it does not match in other
/// words.
fn secret_of(word: &str) -> Option<(&str, &'static str)> {
    if let Some(place) = word.find("://") {
        return Some((&word[place..], "://…"));
    }
    let place = word.rfind('@')?;
    Some((&word[..=place], "…@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn missing_dashes_are_put_between_name_and_command() {
        let right = |line| with_dashes(&words(line)).map(|words| command_line(&words));
        assert_eq!(
            right("x run nightly ls -la").as_deref(),
            Some("leasehold run nightly -- ls -la")
        );
        assert_eq!(
            right("x -v run --wait 5s --no-wait nightly ls").as_deref(),
            Some("leasehold -v run --wait 5s --no-wait nightly -- ls")
        );
        assert_eq!(
            right("x run -w 5s -n nightly ls").as_deref(),
            Some("leasehold run -w 5s -n nightly -- ls")
        );
        assert_eq!(right("x run nightly"), None);
        assert_eq!(right("x run nightly -- ls"), None);
        assert_eq!(right("x show run nightly"), None);
    }

    #[test]
    fn secrets_in_arguments_are_masked() {
        let line = words("x run nightly redis://:s3cret@h u:s3cret@host");
        let text = without_secrets("unexpected 'redis://:s3cret@h' and 'u:s3cret@host'", &line);
        assert_eq!(text, "unexpected 'redis://…' and '…@host'");
        let right = command_line(&with_dashes(&line).expect("they are missing"));
        assert!(!right.contains("s3cret"), "{right}");
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(
            command_line(&["a b".into(), "it's".into(), "x\u{1b}".into()]),
            r"'a b' 'it'\''s' 'x\u{1b}'"
        );
    }
}
