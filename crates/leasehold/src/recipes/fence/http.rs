use std::error::Error as StdError;
use std::fmt;

use super::{LIMIT, Stale};

/// The header in which a client sends its token as a decimal number. It is in lower case, as HTTP/2
/// sends it and as the crate `http` requires it. HTTP ignores the case.
pub const HEADER: &str = "fencing-token";

/// The reason why a service refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The request has no token, although the resource requires one.
    Missing,
    /// The header is not a single token.
    Invalid,
    /// The token is late. The client must stop and not retry.
    Stale(Stale),
}

impl Refusal {
    /// Returns the status code of the response: 428 (precondition required), 400 or 409 (conflict).
    /// You can use the message of the refusal as its body.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Missing => 428,
            Self::Invalid => 400,
            Self::Stale(_) => 409,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(
                f,
                "the request needs a fencing token in the header {HEADER}"
            ),
            Self::Invalid => write!(f, "the header {HEADER} must be one number below 2^53"),
            Self::Stale(stale) => stale.fmt(f),
        }
    }
}

impl StdError for Refusal {}

impl From<Stale> for Refusal {
    fn from(stale: Stale) -> Self {
        Self::Stale(stale)
    }
}

/// Returns the token of a request. `header` is the value of [`HEADER`], if the request has it. Then
/// check the token and change the data in one step: for example, run
/// [`Sql::raise`](super::Sql::raise) and the changes in one transaction.
///
/// # Errors
///
/// [`Refusal::Missing`] without the header, `Invalid` if its value is not a token. A request with
/// several tokens is invalid: pass the values joined by commas, as most libraries return them.
///
/// # Examples
///
/// ```
/// use leasehold::fence::{Fences, http};
///
/// /// Returns the status and the body of the response.
/// fn put(fences: &Fences, header: Option<&str>) -> (u16, String) {
///     let stored = http::token(header).and_then(|token| {
///         let stored = fences.change("stock:7", token, || "stored".to_owned())?;
///         Ok(stored)
///     });
///     match stored {
///         Ok(body) => (200, body),
///         Err(refusal) => (refusal.status(), refusal.to_string()),
///     }
/// }
///
/// let fences = Fences::new();
/// assert_eq!(put(&fences, Some("9")).0, 200);
/// assert_eq!(put(&fences, Some("8")).0, 409);
/// assert_eq!(put(&fences, None).0, 428);
/// ```
pub fn token(header: Option<&str>) -> Result<u64, Refusal> {
    let text = header.ok_or(Refusal::Missing)?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let token = text.parse().ok().filter(|token| *token < LIMIT);
    token.filter(|_| is_number).ok_or(Refusal::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_number_is_a_token() {
        assert_eq!(token(Some(" 1790000000000000 ")), Ok(1_790_000_000_000_000));
        assert_eq!(token(Some("9007199254740991")), Ok(LIMIT - 1));
        for text in [
            "",
            "+1",
            "-1",
            "1, 2",
            "1.0",
            "0x1",
            "9007199254740992",
            "99999999999999999999",
        ] {
            assert_eq!(token(Some(text)), Err(Refusal::Invalid), "{text:?}");
        }
    }
}
