//! Durations in string literals.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Expr, ExprLit, Lit, Result};

use crate::arguments::unbraced;

/// A duration in an argument of the attribute.
pub(crate) enum Duration {
    /// The number of milliseconds in a string literal.
    Literal(u64),
    /// An expression of the type `Duration`.
    Expression(Expr),
}

impl Duration {
    pub(crate) fn of(value: Expr) -> Result<Self> {
        match unbraced(value) {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => match milliseconds(&text.value()) {
                Some(ms) => Ok(Self::Literal(ms)),
                None => Err(syn::Error::new(
                    text.span(),
                    "not a duration; write a number and a unit (ms, s, m, h), for example \"500ms\", \"5s\" or \"1m30s\"",
                )),
            },
            Expr::Lit(ExprLit { lit, .. }) => Err(syn::Error::new(
                lit.span(),
                "a duration needs quotation marks and a unit, for example \"5s\"",
            )),
            value => Ok(Self::Expression(value)),
        }
    }

    /// Returns whether this is a literal of zero.
    pub(crate) fn is_zero(&self) -> bool {
        matches!(self, Self::Literal(0))
    }

    pub(crate) fn is_literal(&self) -> bool {
        matches!(self, Self::Literal(_))
    }

    pub(crate) fn tokens(&self) -> TokenStream {
        match self {
            Self::Literal(ms) => quote!(::core::time::Duration::from_millis(#ms)),
            Self::Expression(value) => quote!(#value),
        }
    }
}

/// Returns the milliseconds in a string such as `1m30s`, or `None` if it is not a duration.
fn milliseconds(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let ms = number.parse::<u64>().ok()?.checked_mul(unit_ms)?;
        sum = sum.checked_add(ms)?;
        rest = after.trim_start();
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let good = [
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            (" 1m 30s ", 90_000),
        ];
        for (text, ms) in good {
            assert_eq!(milliseconds(text), Some(ms), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "5d",
            "-1s",
            "1.5s",
            "5s!",
            "99999999999999999999h",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }
}
