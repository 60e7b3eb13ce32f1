//! Finds out whether the word at the cursor of a shell is the name of a lock.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// Returns the command line that prints the names for the word at the cursor, or `None` if the word
/// is not a name. `words` are the words after `leasehold`, and the last one is at the cursor.
/// Options of the connection are kept.
pub(super) fn listing(root: &Command, words: &[OsString]) -> Option<Vec<OsString>> {
    let (begun, before) = words.split_last()?;
    let mut line: Vec<OsString> = vec!["leasehold".into()];
    let (mut command, mut places) = (root, 0);
    let mut before = before.iter();
    while let Some(word) = before.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            return None;
        }
        if text.starts_with('-') {
            let value = option_before_value(&[root, command], word).map(|_| before.next());
            let option = text.split('=').next().unwrap_or_default();
            let is_global = option_named(&[root], option).is_some();
            match value {
                // The cursor is at the value of this option.
                Some(None) => return None,
                Some(Some(value)) if is_global => line.extend([word.clone(), value.clone()]),
                None if is_global && text.contains('=') => line.push(word.clone()),
                _ => {}
            }
        } else if let Some(below) = command.find_subcommand(&*text).filter(|_| places == 0) {
            command = below;
        } else {
            places += 1;
        }
    }
    let begun = begun.to_str().filter(|begun| !begun.starts_with('-'))?;
    let argument = command.get_positionals().nth(places)?;
    if argument.get_id() != "name" {
        return None;
    }
    line.extend(["names", "--", begun].map(OsString::from));
    Some(line)
}

/// Returns the option that this word names, if the next word is the value of this option.
pub(super) fn option_before_value<'a>(commands: &[&'a Command], word: &OsStr) -> Option<&'a Arg> {
    let word = word.to_string_lossy();
    let takes_value = |arg: &&Arg| arg.get_action().takes_values();
    if word.starts_with("--") {
        return option_named(commands, &word).filter(takes_value);
    }
    // If the word has several letters, the first option with a value takes the rest of the word.
    let letters = word.strip_prefix('-')?;
    let mut options = letters.char_indices().filter_map(|(at, letter)| {
        let option = option_named(commands, &format!("-{letter}")).filter(takes_value)?;
        Some((option, at + letter.len_utf8() == letters.len()))
    });
    options
        .next()
        .and_then(|(option, is_last)| is_last.then_some(option))
}

/// Returns the option with this name: `--long` or `-s`.
fn option_named<'a>(commands: &[&'a Command], name: &str) -> Option<&'a Arg> {
    let mut arguments = commands.iter().flat_map(|command| command.get_arguments());
    arguments.find(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => {
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            short.as_deref() == Some(name)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn listing_of(line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let listing = listing(&cli::command(), &words)?;
        let words = listing.iter().map(|word| word.to_string_lossy());
        Some(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn names_are_listed_where_a_name_belongs() {
        for line in [
            "show or",
            "show --json or",
            "watch --every 1s or",
            "release -y or",
            "latch wait -w 5s or",
            "set-limit or",
            "run -n -w 5s --on-loss kill or",
            "run -nw 5s or",
            "run -w5s or",
        ] {
            let listed = listing_of(line);
            assert_eq!(listed.as_deref(), Some("leasehold names -- or"), "{line}");
        }
        for line in [
            "",
            "sh",
            "show --js",
            "show orders or",
            "ls or",
            "ls --kind or",
            "watch --every or",
            "run orders -- or",
            "release --holder or",
            "run -nw or",
            "latch or",
            "set-limit orders or",
        ] {
            assert_eq!(listing_of(line), None, "{line}");
        }
    }

    #[test]
    fn names_are_those_of_the_connection_in_the_line() {
        assert_eq!(
            listing_of("--redis redis://h -q show --json --prefix=app: or").as_deref(),
            Some("leasehold --redis redis://h --prefix=app: names -- or")
        );
    }
}
