//! Patterns for names, in the syntax of the server's `KEYS` and `SCAN`.

/// Returns why a string is not a valid pattern; `None` if it is one.
pub(crate) fn fault(pattern: &str) -> Option<&'static str> {
    let mut letters = pattern.chars();
    let mut in_class = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.next().is_none() => return Some("ends in a lone backslash"),
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
    }
    match in_class {
        _ if pattern.is_empty() => Some("is empty"),
        true => Some("has a [ without its ]"),
        false => None,
    }
}

/// Returns whether a string matches a pattern. `*` matches any string, `?` any byte, `[a-c]` and
/// `[^ab]` one byte of a set. A backslash makes the next byte literal.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // `back` says where to continue if the rest does not match: after the last star, which then
    // takes one more byte.
    let (mut at, mut place, mut back) = (0, 0, None);
    while place < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            back = Some((at, place));
        } else if let Some(next) = match_one(pattern, at, text[place]) {
            (at, place) = (next, place + 1);
        } else if let Some((star, taken)) = back {
            (at, place) = (star, taken + 1);
            back = Some((star, taken + 1));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the index after the part of the pattern that matches this byte; `None` if it does not
/// match.
fn match_one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => match_class(pattern, at + 1, byte),
        b'\\' => (pattern.get(at + 1) == Some(&byte)).then_some(at + 2),
        letter => (letter == byte).then_some(at + 1),
    }
}

fn match_class(pattern: &[u8], mut at: usize, byte: u8) -> Option<usize> {
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut found = false;
    while *pattern.get(at)? != b']' {
        if pattern[at] == b'\\' {
            at += 1;
        }
        let first = *pattern.get(at)?;
        let is_range = pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some();
        let last = if is_range { pattern[at + 2] } else { first };
        found |= (first.min(last)..=first.max(last)).contains(&byte);
        at += if is_range { 3 } else { 1 };
    }
    (found != negated).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_on_the_server() {
        for (pattern, text, fit) in [
            ("*", "", true),
            ("job:*", "job:1", true),
            ("job:*", "jobs:1", false),
            ("*:1*2", "a:1:2:12", true),
            ("*:1*2", "a:1:2:13", false),
            ("j?b", "job", true),
            ("j?b", "jb", false),
            ("j[a-p]b", "job", true),
            ("j[p-a]b", "job", true),
            ("j[^a-p]b", "job", false),
            (r"j\*b", "j*b", true),
            (r"j\*b", "job", false),
            (r"[\]]", "]", true),
            ("job", "job", true),
            ("job", "job1", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                fit,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn what_is_no_pattern_is_named() {
        assert_eq!(fault("job:*[ab]"), None);
        assert_eq!(fault(r"a\\"), None);
        for pattern in ["", "job[a", r"job\"] {
            assert!(fault(pattern).is_some(), "{pattern}");
        }
    }
}
