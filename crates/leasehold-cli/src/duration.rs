//! Durations on the command line: a number with a unit.

use std::time::Duration;

/// Longer than anything that is meant.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads `5s`, `500ms`, `1m 30s`. Zero, negative and absurd ones are refused.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("a duration can't be negative; write it as 5s or 500ms".into());
    }
    if !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit()) {
        return Err(format!(
            "a duration needs a unit; write {text}s or {text}ms"
        ));
    }
    let duration = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it as 5s or 500ms"))?;
    if duration.is_zero() {
        return Err("a duration of zero does nothing; set a longer one".into());
    }
    if duration > LONGEST {
        return Err("a duration of more than a year is not meant; set a shorter one".into());
    }
    Ok(duration)
}

/// A duration for people, to the millisecond: `1m 2s 345ms`.
pub(crate) fn shown(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        let error = parse("5").expect_err("it is refused");
        assert!(error.contains("5s or 5ms"), "{error}");
    }

    #[test]
    fn zero_negative_and_absurd_durations_are_refused() {
        for (text, why) in [
            ("0s", "zero"),
            ("-5s", "negative"),
            ("2years", "more than a year"),
            ("99999999999999999999s", "5s or 500ms"),
            ("", "5s or 500ms"),
            ("soon", "5s or 500ms"),
        ] {
            let error = parse(text).expect_err("it is refused");
            assert!(error.contains(why), "`{text}`: {error}");
        }
    }
}
