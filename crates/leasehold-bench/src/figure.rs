//! The figures in a row: their names in floors and in JSON, and their headings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One figure. The scenario decides which figures a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Figure {
    Pairs,
    P50,
    P99,
    Max,
    Commands,
    Scripts,
    ServerUs,
    ClientUs,
    Least,
    Most,
    MostOverLeast,
    WaiterPairs,
    WaiterP50,
    WaiterP99,
    WaiterMax,
    ClientPercent,
    ServerPercent,
    Rss,
    Heap,
    ServerBytes,
    Validity,
    Lost,
}

impl Figure {
    pub(crate) const ALL: [Self; 22] = [
        Self::Pairs,
        Self::P50,
        Self::P99,
        Self::Max,
        Self::Commands,
        Self::Scripts,
        Self::ServerUs,
        Self::ClientUs,
        Self::Least,
        Self::Most,
        Self::MostOverLeast,
        Self::WaiterPairs,
        Self::WaiterP50,
        Self::WaiterP99,
        Self::WaiterMax,
        Self::ClientPercent,
        Self::ServerPercent,
        Self::Rss,
        Self::Heap,
        Self::ServerBytes,
        Self::Validity,
        Self::Lost,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs/s",
            Self::P50 => "p50-us",
            Self::P99 => "p99-us",
            Self::Max => "max-us",
            Self::Commands => "commands",
            Self::Scripts => "scripts",
            Self::ServerUs => "server-us",
            Self::ClientUs => "client-us",
            Self::Least => "least-pairs/s",
            Self::Most => "most-pairs/s",
            Self::MostOverLeast => "most/least",
            Self::WaiterPairs => "waiter-pairs/s",
            Self::WaiterP50 => "waiter-p50-us",
            Self::WaiterP99 => "waiter-p99-us",
            Self::WaiterMax => "waiter-max-us",
            Self::ClientPercent => "client-cpu-%",
            Self::ServerPercent => "server-cpu-%",
            Self::Rss => "rss-bytes",
            Self::Heap => "heap-bytes",
            Self::ServerBytes => "server-bytes",
            Self::Validity => "validity-%",
            Self::Lost => "lost",
        }
    }

    /// Returns the heading of the figure on the page.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::Pairs => "pairs/s",
            Self::P50 | Self::WaiterP50 => "p50 µs",
            Self::P99 | Self::WaiterP99 => "p99 µs",
            Self::Max | Self::WaiterMax => "max µs",
            Self::Commands => "commands per pair",
            Self::Scripts => "script calls per pair",
            Self::ServerUs => "server µs per pair",
            Self::ClientUs => "client µs per pair",
            Self::Least => "slowest, pairs/s",
            Self::Most => "fastest, pairs/s",
            Self::MostOverLeast => "fastest / slowest",
            Self::WaiterPairs => "the waiter's pairs/s",
            Self::ClientPercent => "client, % of a core",
            Self::ServerPercent => "server, % of a core",
            Self::Rss => "client memory, bytes each",
            Self::Heap => "of which live heap",
            Self::ServerBytes => "server memory, bytes each",
            Self::Validity => "least validity, % of the lease",
            Self::Lost => "locks lost",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|figure| figure.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|figure| figure.name()).collect();
            format!("no figure `{name}`; there are {}", names.join(", "))
        })
    }
}

impl TryFrom<String> for Figure {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Figure> for String {
    fn from(figure: Figure) -> Self {
        figure.name().to_owned()
    }
}

/// Formats a number for people, with three significant digits.
pub(crate) fn short(number: f64) -> String {
    let digits = match number.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        0.0 => 0,
        _ => 3,
    };
    let text = format!("{number:.digits$}");
    let Some((whole, rest)) = text.split_once('.') else {
        return thousands(&text);
    };
    format!("{whole}.{rest}")
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_they_are_written() {
        for figure in Figure::ALL {
            assert_eq!(figure.name().parse(), Ok(figure));
        }
        assert!("pears/s".parse::<Figure>().is_err());
    }

    #[test]
    fn numbers_are_as_long_as_they_need_to_be() {
        let written = [0.0, 0.1234, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0].map(short);
        let expected = ["0", "0.123", "1.23", "12.3", "123", "1,234", "1,234,567"];
        assert_eq!(written, expected);
    }
}
