//! Durations on the command line: a number with a unit, or a number of seconds.

use std::time::Duration;

/// The longest duration that is accepted. A user who writes a longer one has made a mistake.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The error for a duration of zero.
pub(crate) const ZERO: &str = "a duration of zero does nothing; set a longer one";

/// Parses `5s`, `500ms`, `1m 30s`, and `5` as seconds. Refuses zero, negative and absurdly long
/// durations.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    match parse_or_zero(text)? {
        Duration::ZERO => Err(ZERO.into()),
        duration => Ok(duration),
    }
}

/// Parses a duration like [`parse`], and accepts zero.
pub(crate) fn parse_or_zero(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("a duration can't be negative; write it as 5s or 500ms".into());
    }
    let is_number = text.chars().all(|letter| letter.is_ascii_digit());
    let unit = if is_number { "s" } else { "" };
    let duration = humantime::parse_duration(&format!("{text}{unit}"))
        .map_err(|error| format!("{error}; write it as 5s or 500ms"))?;
    if duration > LONGEST {
        return Err("a duration can't be longer than a year; set a shorter one".into());
    }
    Ok(duration)
}

/// Formats a duration for users, rounded to milliseconds: `1m 2s 345ms`.
pub(crate) fn shown(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

const UNITS: [(u128, &str); 4] = [
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "m"),
    (1000, "s"),
];

/// Formats a duration without spaces, for the command line: `20h53m`.
pub(crate) fn compact(duration: Duration) -> String {
    let mut ms = duration.as_millis();
    let mut text = String::new();
    for (unit, name) in UNITS {
        if ms >= unit {
            text += &format!("{}{name}", ms / unit);
            ms %= unit;
        }
    }
    match (ms, text.is_empty()) {
        (0, false) => text,
        (ms, _) => format!("{text}{ms}ms"),
    }
}

/// Formats a duration as one number with a unit, for the command line: `24h`.
pub(crate) fn exact(duration: Duration) -> String {
    let ms = duration.as_millis();
    let fitting = UNITS
        .iter()
        .find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    match fitting {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// Describes the time that is left, in words.
pub(crate) fn soon(left: Duration) -> String {
    match left.as_millis() {
        0 => "at once".to_owned(),
        _ => format!("in {}", shown(left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        assert_eq!(parse("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse(" 90 "), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn exact_durations_can_be_written_on_the_command_line() {
        for text in ["20h53m", "3m38s", "182d5ms", "7s", "0ms"] {
            assert_eq!(parse_or_zero(text).map(compact), Ok(text.into()));
        }
        for text in ["365d", "24h", "25h", "90m", "61s", "1500ms"] {
            let duration = parse(text).expect("it is valid");
            let written = exact(duration);
            assert_eq!(parse(&written), Ok(duration), "{text}: {written}");
            assert!(written.len() <= text.len(), "{written}");
        }
    }

    #[test]
    fn zero_negative_and_absurd_durations_are_refused() {
        for (text, why) in [
            ("0s", "zero"),
            ("0", "zero"),
            ("99999999999999999999", "5s or 500ms"),
            ("-5s", "negative"),
            ("2years", "longer than a year"),
            ("99999999999999999999s", "5s or 500ms"),
            ("", "5s or 500ms"),
            ("soon", "5s or 500ms"),
        ] {
            let error = parse(text).expect_err("it is refused");
            assert!(error.contains(why), "`{text}`: {error}");
        }
    }
}
